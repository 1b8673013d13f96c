/* Sends and receives in each of their forms, and what is asked of statuses and requests. Each
 * rank exchanges with itself. */
#include "check.h"

static int in[4] = {1, 2, 3, 4}, out[4];
static MPI_Request request, receive;
static MPI_Status status;
static const MPI_Count three = 3;

static void came(void) {
    OK(MPI_Wait(&receive, &status));
    CHECK(status.MPI_SOURCE == 0 && status.MPI_TAG == 7);
    CHECK(out[0] == 1 && out[2] == 3 && out[3] == 0);
    memset(out, 0, sizeof out);
}

/* The receive is there before the send, as ready sends want it. */
#define EXPECT() OK(MPI_Irecv(out, 3, MPI_INT, 0, 7, self, &receive))
#define ARGS(n) in, n, MPI_INT, 0, 7, self

#define SENDS(block, begin)                                                              \
    do {                                                                                 \
        EXPECT(); OK(MPI_##block(ARGS(3))); came();                                      \
        EXPECT(); OK(MPI_##block##_c(ARGS(three))); came();                              \
        EXPECT(); OK(MPI_I##begin(ARGS(3), &request)); OK(MPI_Wait(&request, &status)); came();         \
        EXPECT(); OK(MPI_I##begin##_c(ARGS(three), &request)); OK(MPI_Wait(&request, &status)); came(); \
        OK(MPI_##block##_init(ARGS(3), &request));                                       \
        for (int i = 0; i < 2; i++) {                                                    \
            EXPECT(); OK(MPI_Start(&request)); OK(MPI_Wait(&request, &status)); came();  \
        }                                                                                \
        OK(MPI_Request_free(&request));                                                  \
        OK(MPI_##block##_init_c(ARGS(three), &request));                                 \
        for (int i = 0; i < 2; i++) {                                                    \
            EXPECT(); OK(MPI_Start(&request)); OK(MPI_Wait(&request, &status)); came();  \
        }                                                                                \
        OK(MPI_Request_free(&request));                                                  \
    } while (0)

static void sends(MPI_Comm self) {
    static char room[4 * (sizeof in + MPI_BSEND_OVERHEAD)];
    char *back;
    int bytes;
    MPI_Count bytes_c;
    SENDS(Send, send);
    SENDS(Ssend, ssend);
    SENDS(Rsend, rsend);
    OK(MPI_Buffer_attach(room, sizeof room));
    SENDS(Bsend, bsend);
    OK(MPI_Buffer_flush());
    OK(MPI_Buffer_iflush(&request)); OK(MPI_Wait(&request, &status));
    OK(MPI_Buffer_detach(&back, &bytes)); CHECK(back == room && bytes == sizeof room);
    OK(MPI_Buffer_attach_c(room, sizeof room));
    EXPECT(); OK(MPI_Bsend(ARGS(3))); came();
    OK(MPI_Buffer_detach_c(&back, &bytes_c)); CHECK(back == room && bytes_c == sizeof room);
    OK(MPI_Comm_attach_buffer(self, room, sizeof room));
    EXPECT(); OK(MPI_Bsend(ARGS(3))); came();
    OK(MPI_Comm_flush_buffer(self));
    OK(MPI_Comm_iflush_buffer(self, &request)); OK(MPI_Wait(&request, &status));
    OK(MPI_Comm_detach_buffer(self, &back, &bytes)); CHECK(back == room && bytes == sizeof room);
    OK(MPI_Comm_attach_buffer_c(self, room, sizeof room));
    OK(MPI_Comm_detach_buffer_c(self, &back, &bytes_c)); CHECK(back == room && bytes_c == sizeof room);
}

static void arrived(void) {
    int n;
    MPI_Count n_c, bits, words;
    CHECK(status.MPI_SOURCE == 0 && status.MPI_TAG == 7 && out[0] == 1 && out[2] == 3);
    OK(MPI_Get_count(&status, MPI_INT, &n)); CHECK(n == 3);
    OK(MPI_Get_count_c(&status, MPI_INT, &n_c)); CHECK(n_c == 3);
    OK(MPI_Get_elements_c(&status, MPI_CHAR, &bits)); CHECK(bits == 12);
    OK(MPI_Get_elements_x(&status, MPI_INT, &words)); CHECK(words == 3);
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    memset(out, 0, sizeof out);
}

static void receives(MPI_Comm self) {
    MPI_Message message;
    MPI_Request repeated;
    OK(MPI_Isend(ARGS(3), &request)); OK(MPI_Recv(out, 4, MPI_INT, 0, 7, self, &status)); arrived();
    OK(MPI_Isend(ARGS(3), &request)); OK(MPI_Recv_c(out, 4, MPI_INT, 0, 7, self, &status)); arrived();
    OK(MPI_Irecv_c(out, 4, MPI_INT, 0, 7, self, &receive));
    OK(MPI_Isend(ARGS(3), &request)); OK(MPI_Wait(&receive, &status)); arrived();
    OK(MPI_Isend(ARGS(3), &request)); OK(MPI_Mprobe(0, 7, self, &message, &status));
    CHECK(MPI_Message_fromint(MPI_Message_toint(message)) == message);
    OK(MPI_Mrecv_c(out, 4, MPI_INT, &message, &status)); CHECK(message == MPI_MESSAGE_NULL); arrived();
    OK(MPI_Isend(ARGS(3), &request)); OK(MPI_Mprobe(0, 7, self, &message, &status));
    OK(MPI_Imrecv_c(out, 4, MPI_INT, &message, &receive)); OK(MPI_Wait(&receive, &status)); arrived();
    for (int large = 0; large < 2; large++) {
        if (large) OK(MPI_Recv_init_c(out, 4, MPI_INT, 0, 7, self, &repeated));
        else OK(MPI_Recv_init(out, 4, MPI_INT, 0, 7, self, &repeated));
        for (int i = 0; i < 2; i++) {
            OK(MPI_Startall(1, &repeated)); OK(MPI_Isend(ARGS(3), &request));
            OK(MPI_Wait(&repeated, &status)); arrived();
        }
        OK(MPI_Request_free(&repeated));
    }
}

static void exchanges(MPI_Comm self) {
    int there[4];
    request = MPI_REQUEST_NULL;
    OK(MPI_Sendrecv(in, 3, MPI_INT, 0, 7, out, 4, MPI_INT, 0, 7, self, &status)); arrived();
    OK(MPI_Sendrecv_c(in, 3, MPI_INT, 0, 7, out, 4, MPI_INT, 0, 7, self, &status)); arrived();
    OK(MPI_Isendrecv(in, 3, MPI_INT, 0, 7, out, 4, MPI_INT, 0, 7, self, &receive));
    OK(MPI_Wait(&receive, &status)); arrived();
    OK(MPI_Isendrecv_c(in, 3, MPI_INT, 0, 7, out, 4, MPI_INT, 0, 7, self, &receive));
    OK(MPI_Wait(&receive, &status)); arrived();
    memcpy(there, in, sizeof in);
    OK(MPI_Sendrecv_replace(there, 3, MPI_INT, 0, 7, 0, 7, self, &status));
    OK(MPI_Sendrecv_replace_c(there, 3, MPI_INT, 0, 7, 0, 7, self, &status));
    OK(MPI_Isendrecv_replace(there, 3, MPI_INT, 0, 7, 0, 7, self, &receive));
    OK(MPI_Wait(&receive, &status));
    OK(MPI_Isendrecv_replace_c(there, 3, MPI_INT, 0, 7, 0, 7, self, &receive));
    OK(MPI_Wait(&receive, &status));
    CHECK(!memcmp(there, in, sizeof in) && status.MPI_TAG == 7);
}

/* What is asked of several requests leaves them as they are. */
static void questions(MPI_Comm self) {
    MPI_Request both[3] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    MPI_Status statuses[3];
    int flag, at, n, places[3], got[2];
    OK(MPI_Request_get_status_any(3, both, &at, &flag, &status)); CHECK(flag && at == MPI_UNDEFINED);
    OK(MPI_Request_get_status_some(3, both, &n, places, statuses)); CHECK(n == MPI_UNDEFINED);
    OK(MPI_Request_get_status_all(3, both, &flag, statuses)); CHECK(flag);
    for (int i = 0; i < 2; i++) OK(MPI_Irecv(&got[i], 1, MPI_INT, 0, i, self, &both[i]));
    OK(MPI_Request_get_status_all(3, both, &flag, statuses)); CHECK(!flag);
    OK(MPI_Request_get_status_any(3, both, &at, &flag, &status)); CHECK(!flag);
    OK(MPI_Request_get_status_some(3, both, &n, places, statuses)); CHECK(n == 0);
    OK(MPI_Send(&in[1], 1, MPI_INT, 0, 1, self));
    do OK(MPI_Request_get_status_any(3, both, &at, &flag, &status));
    while (!flag);
    CHECK(at == 1 && status.MPI_TAG == 1 && both[1] != MPI_REQUEST_NULL);
    OK(MPI_Request_get_status_some(3, both, &n, places, statuses));
    CHECK(n == 1 && places[0] == 1 && statuses[0].MPI_TAG == 1);
    OK(MPI_Request_get_status_all(3, both, &flag, statuses)); CHECK(!flag);
    OK(MPI_Send(&in[0], 1, MPI_INT, 0, 0, self));
    do OK(MPI_Request_get_status_all(3, both, &flag, statuses));
    while (!flag);
    CHECK(statuses[0].MPI_TAG == 0 && statuses[1].MPI_TAG == 1);
    OK(MPI_Waitall(3, both, statuses)); CHECK(got[0] == 1 && got[1] == 2);
}

static void statuses(void) {
    int n, flag;
    MPI_Count n_c;
    MPI_Status own;
    OK(MPI_Status_set_source(&own, 5)); OK(MPI_Status_set_tag(&own, 6)); OK(MPI_Status_set_error(&own, MPI_ERR_TAG));
    CHECK(own.MPI_SOURCE == 5 && own.MPI_TAG == 6 && own.MPI_ERROR == MPI_ERR_TAG);
    OK(MPI_Status_get_source(&own, &n)); CHECK(n == 5);
    OK(MPI_Status_get_tag(&own, &n)); CHECK(n == 6);
    OK(MPI_Status_get_error(&own, &n)); CHECK(n == MPI_ERR_TAG);
    OK(MPI_Status_set_cancelled(&own, 0));
    OK(MPI_Status_set_elements_c(&own, MPI_INT, 9)); OK(MPI_Get_count(&own, MPI_INT, &n)); CHECK(n == 9);
    OK(MPI_Status_set_elements_x(&own, MPI_SHORT, 8)); OK(MPI_Get_elements(&own, MPI_CHAR, &n)); CHECK(n == 16);
    OK(MPI_Get_elements_x(&own, MPI_CHAR, &n_c)); CHECK(n_c == 16);
    OK(MPI_Test_cancelled(&own, &flag)); CHECK(!flag);
}

/* Partitioned, with large counts; two partitions of two numbers. */
static void partitions(MPI_Comm self) {
    MPI_Request both[2];
    int flag;
    OK(MPI_Psend_init_c(in, 2, 2, MPI_INT, 0, 9, self, MPI_INFO_NULL, &both[0]));
    OK(MPI_Precv_init_c(out, 2, 2, MPI_INT, 0, 9, self, MPI_INFO_NULL, &both[1]));
    for (int i = 0; i < 2; i++) {
        OK(MPI_Startall(2, both));
        OK(MPI_Pready(1, both[0])); OK(MPI_Pready(0, both[0]));
        do OK(MPI_Parrived(both[1], 1, &flag));
        while (!flag);
        CHECK(out[2] == 3 && out[3] == 4);
        OK(MPI_Waitall(2, both, MPI_STATUSES_IGNORE));
        CHECK(out[0] == 1 && out[1] == 2);
        memset(out, 0, sizeof out);
    }
    OK(MPI_Request_free(&both[0])); OK(MPI_Request_free(&both[1]));
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    MPI_Comm self = MPI_COMM_SELF;
    OK(MPI_Comm_set_errhandler(self, MPI_ERRORS_RETURN));
    sends(self);
    receives(self);
    exchanges(self);
    questions(self);
    statuses();
    partitions(self);
    return end();
}
