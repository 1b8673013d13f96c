/* Point-to-point, on 2 ranks or more: the first two talk. */
#include "check.h"

static int freed;
static int query(void *extra, MPI_Status *status) {
    (void)extra;
    MPI_Status_set_elements(status, MPI_INT, 3);
    MPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = 5; status->MPI_TAG = 6;
    return MPI_SUCCESS;
}
static int release(void *extra) { (void)extra; freed++; return MPI_SUCCESS; }
static int cancel(void *extra, int complete) { (void)extra; (void)complete; return MPI_SUCCESS; }

static void blocking(int peer) {
    int data[4] = {rank, 2, 3, 4}, n;
    MPI_Status status;
    if (rank == 0) {
        OK(MPI_Send(data, 4, MPI_INT, peer, 7, MPI_COMM_WORLD));
        OK(MPI_Ssend(data, 1, MPI_INT, peer, 8, MPI_COMM_WORLD));
        OK(MPI_Send_c(data, (MPI_Count)2, MPI_INT, peer, 9, MPI_COMM_WORLD));
    } else {
        memset(data, 0, sizeof data);
        status.MPI_ERROR = 77;
        OK(MPI_Recv(data, 4, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status));
        CHECK(status.MPI_SOURCE == 0 && status.MPI_TAG == 7 && status.MPI_ERROR == 77);
        OK(MPI_Get_count(&status, MPI_INT, &n)); CHECK(n == 4);
        OK(MPI_Get_count(&status, MPI_DOUBLE, &n)); CHECK(n == 2);
        CHECK(data[0] == 0 && data[3] == 4);
        OK(MPI_Probe(0, 8, MPI_COMM_WORLD, &status));
        OK(MPI_Get_elements(&status, MPI_INT, &n)); CHECK(n == 1);
        OK(MPI_Recv(data, 1, MPI_INT, 0, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        FAILS(MPI_Recv(data, 1, MPI_INT, 0, 9, MPI_COMM_WORLD, &status), MPI_ERR_TRUNCATE);
    }
    int mine = rank, theirs = -1;
    OK(MPI_Sendrecv(&mine, 1, MPI_INT, peer, 1, &theirs, 1, MPI_INT, peer, 1, MPI_COMM_WORLD, &status));
    CHECK(theirs == peer);
    OK(MPI_Sendrecv_replace(&mine, 1, MPI_INT, peer, 1, peer, 1, MPI_COMM_WORLD, &status));
    CHECK(mine == peer);
    OK(MPI_Recv(data, 4, MPI_INT, MPI_PROC_NULL, 3, MPI_COMM_WORLD, &status));
    CHECK(status.MPI_SOURCE == MPI_PROC_NULL && status.MPI_TAG == MPI_ANY_TAG);
    char room[4096], *back;
    OK(MPI_Buffer_attach(room, sizeof room));
    OK(MPI_Bsend(&rank, 1, MPI_INT, peer, 2, MPI_COMM_WORLD));
    OK(MPI_Recv(&theirs, 1, MPI_INT, peer, 2, MPI_COMM_WORLD, &status)); CHECK(theirs == peer);
    OK(MPI_Buffer_detach(&back, &n)); CHECK(back == room && n == sizeof room);
}

static void requests(int peer) {
    enum { N = 40 };
    MPI_Request all[2 * N];
    MPI_Status statuses[2 * N];
    int out[N], in[N], at, flag, n, indices[2 * N];
    for (int i = 0; i < N; i++) {
        out[i] = 100 * rank + i;
        OK(MPI_Irecv(&in[i], 1, MPI_INT, peer, i, MPI_COMM_WORLD, &all[i]));
    }
    for (int i = N - 1; i >= 0; i--)
        OK(MPI_Isend(&out[i], 1, MPI_INT, peer, i, MPI_COMM_WORLD, &all[N + i]));
    OK(MPI_Waitany(2 * N, all, &at, statuses)); CHECK(all[at] == MPI_REQUEST_NULL);
    OK(MPI_Waitsome(2 * N, all, &n, indices, statuses)); CHECK(n >= 1);
    OK(MPI_Waitall(2 * N, all, statuses));
    for (int i = 0; i < N; i++) CHECK(in[i] == 100 * peer + i);
    OK(MPI_Testall(2 * N, all, &flag, MPI_STATUSES_IGNORE)); CHECK(flag);
    OK(MPI_Waitany(2 * N, all, &at, statuses)); CHECK(at == MPI_UNDEFINED);
    OK(MPI_Testsome(2 * N, all, &n, indices, statuses)); CHECK(n == MPI_UNDEFINED);

    /* An error of one of several. */
    double big[2];
    if (rank == 0) {
        OK(MPI_Isend(big, 2, MPI_DOUBLE, peer, 50, MPI_COMM_WORLD, &all[0]));
        OK(MPI_Isend(out, 1, MPI_INT, peer, 51, MPI_COMM_WORLD, &all[1]));
        OK(MPI_Waitall(2, all, MPI_STATUSES_IGNORE));
    } else {
        OK(MPI_Irecv(big, 1, MPI_DOUBLE, peer, 50, MPI_COMM_WORLD, &all[0]));
        OK(MPI_Irecv(in, 1, MPI_INT, peer, 51, MPI_COMM_WORLD, &all[1]));
        FAILS(MPI_Waitall(2, all, statuses), MPI_ERR_IN_STATUS);
        FAILS(statuses[0].MPI_ERROR, MPI_ERR_TRUNCATE);
        CHECK(statuses[1].MPI_ERROR == MPI_SUCCESS && in[0] == 0);
    }

    /* Cancelled, tested, and looked at. */
    OK(MPI_Irecv(in, 1, MPI_INT, peer, 60, MPI_COMM_WORLD, &all[0]));
    OK(MPI_Test(&all[0], &flag, statuses)); CHECK(!flag && all[0] != MPI_REQUEST_NULL);
    OK(MPI_Cancel(&all[0]));
    OK(MPI_Request_get_status(all[0], &flag, statuses)); CHECK(flag);
    OK(MPI_Wait(&all[0], statuses));
    OK(MPI_Test_cancelled(statuses, &flag)); CHECK(flag);

    /* Persistent. */
    int value, got;
    OK(MPI_Send_init(&value, 1, MPI_INT, peer, 70, MPI_COMM_WORLD, &all[0]));
    OK(MPI_Recv_init(&got, 1, MPI_INT, peer, 70, MPI_COMM_WORLD, &all[1]));
    for (int i = 0; i < 3; i++) {
        value = 10 * rank + i;
        OK(MPI_Startall(2, all));
        FAILS(MPI_Start(&all[1]), MPI_ERR_REQUEST);
        OK(MPI_Waitall(2, all, MPI_STATUSES_IGNORE));
        CHECK(got == 10 * peer + i && all[0] != MPI_REQUEST_NULL);
    }
    MPI_Request freed_one = all[0];
    OK(MPI_Request_free(&all[0])); OK(MPI_Request_free(&all[1]));
    FAILS(MPI_Start(&freed_one), MPI_ERR_REQUEST);

    /* Generalised. */
    OK(MPI_Grequest_start(query, release, cancel, NULL, &all[0]));
    OK(MPI_Test(&all[0], &flag, statuses)); CHECK(!flag);
    OK(MPI_Grequest_complete(all[0]));
    OK(MPI_Wait(&all[0], statuses));
    OK(MPI_Get_count(statuses, MPI_INT, &n));
    CHECK(n == 3 && statuses->MPI_SOURCE == 5 && freed == 1);
}

static void others(int peer) {
    MPI_Message message;
    MPI_Status status;
    MPI_Request request;
    int data = rank, got = -1, flag = 0, n;
    OK(MPI_Isend(&data, 1, MPI_INT, peer, 1, MPI_COMM_WORLD, &request));
    while (!flag) OK(MPI_Improbe(peer, 1, MPI_COMM_WORLD, &flag, &message, &status));
    OK(MPI_Get_count(&status, MPI_INT, &n)); CHECK(n == 1);
    OK(MPI_Mrecv(&got, 1, MPI_INT, &message, &status));
    CHECK(got == peer && message == MPI_MESSAGE_NULL);
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Mprobe(MPI_PROC_NULL, 1, MPI_COMM_WORLD, &message, &status));
    CHECK(message == MPI_MESSAGE_NO_PROC);
    OK(MPI_Imrecv(&got, 1, MPI_INT, &message, &request));
    OK(MPI_Wait(&request, &status)); CHECK(status.MPI_SOURCE == MPI_PROC_NULL);

    /* Partitions: 4 sent, 2 received. */
    double out[8], in[8];
    for (int i = 0; i < 8; i++) out[i] = 10 * rank + i;
    MPI_Request pair[2];
    OK(MPI_Psend_init(out, 4, 2, MPI_DOUBLE, peer, 5, MPI_COMM_WORLD, MPI_INFO_NULL, &pair[0]));
    OK(MPI_Precv_init(in, 2, 4, MPI_DOUBLE, peer, 5, MPI_COMM_WORLD, MPI_INFO_NULL, &pair[1]));
    for (int round = 0; round < 2; round++) {
        OK(MPI_Startall(2, pair));
        int list[] = {3, 0};
        OK(MPI_Pready_list(2, list, pair[0]));
        OK(MPI_Pready_range(1, 2, pair[0]));
        for (flag = 0; !flag;) OK(MPI_Parrived(pair[1], 1, &flag));
        CHECK(in[7] == 10 * peer + 7);
        OK(MPI_Waitall(2, pair, MPI_STATUSES_IGNORE));
        CHECK(in[0] == 10 * peer);
    }
    OK(MPI_Request_free(&pair[0])); OK(MPI_Request_free(&pair[1]));
}

/* Sends that left at once have requests, which may be one. */
static void short_sends(void) {
    MPI_Request some[3], copy;
    MPI_Status status;
    int in = 0, out = 5, flag, at, n, places[3];
    MPI_Comm s = MPI_COMM_SELF;
    for (int i = 0; i < 3; i++) OK(MPI_Isend(&out, 1, MPI_INT, 0, i, s, &some[i]));
    CHECK(some[0] != MPI_REQUEST_NULL && some[1] != MPI_REQUEST_NULL && some[2] != MPI_REQUEST_NULL);
    OK(MPI_Request_get_status(some[0], &flag, &status));
    CHECK(flag && status.MPI_SOURCE == MPI_ANY_SOURCE && status.MPI_TAG == MPI_ANY_TAG);
    CHECK(MPI_Request_fromint(MPI_Request_toint(some[0])) == some[0]);
    OK(MPI_Cancel(&some[0]));
    OK(MPI_Waitany(3, some, &at, &status)); CHECK(at >= 0 && at < 3 && some[at] == MPI_REQUEST_NULL);
    OK(MPI_Test_cancelled(&status, &flag)); CHECK(!flag);
    OK(MPI_Waitsome(3, some, &n, places, MPI_STATUSES_IGNORE)); CHECK(n == 2 && places[0] != at && places[1] != at);
    OK(MPI_Waitany(3, some, &at, &status)); CHECK(at == MPI_UNDEFINED);
    OK(MPI_Isend(&out, 1, MPI_INT, 0, 3, s, &some[0]));
    OK(MPI_Isend(&out, 1, MPI_INT, 0, 4, s, &some[1]));
    OK(MPI_Isend(&out, 1, MPI_INT, 0, 5, s, &some[2]));
    copy = some[2];
    OK(MPI_Testany(1, some, &at, &flag, &status)); CHECK(flag && at == 0);
    OK(MPI_Test(&some[1], &flag, &status)); CHECK(flag && some[1] == MPI_REQUEST_NULL);
    OK(MPI_Request_free(&some[2]));
    OK(MPI_Wait(&copy, &status)); CHECK(copy == MPI_REQUEST_NULL);
    for (int i = 0; i < 6; i++) {
        OK(MPI_Recv(&in, 1, MPI_INT, 0, i, s, &status));
        CHECK(in == 5 && status.MPI_TAG == i);
    }
    /* Receives of what was there keep their status, also by their number. */
    MPI_Request numbered;
    for (int way = 0; way < 8; way++) {
        int large_tag = way % 2 ? (1 << 25) + way : way;
        OK(MPI_Send(&way, 1, MPI_INT, 0, large_tag, s));
        OK(MPI_Irecv(&in, 1, MPI_INT, 0, large_tag, s, &some[0]));
        copy = numbered = MPI_Request_fromint(MPI_Request_toint(some[0]));
        CHECK(numbered != MPI_REQUEST_NULL);
        OK(MPI_Request_get_status(numbered, &flag, &status));
        CHECK(flag && status.MPI_SOURCE == 0 && status.MPI_TAG == large_tag);
        OK(MPI_Cancel(&numbered));
        memset(&status, 1, sizeof status);
        switch (way / 2) {
        case 0: OK(MPI_Wait(&numbered, &status)); break;
        case 1: OK(MPI_Testall(1, &numbered, &flag, &status)); CHECK(flag && status.MPI_ERROR == MPI_SUCCESS); break;
        case 2: OK(MPI_Waitsome(1, &numbered, &n, places, &status)); CHECK(n == 1 && places[0] == 0); break;
        default: FAILS(MPI_Start(&numbered), MPI_ERR_REQUEST); OK(MPI_Request_get_status(numbered, &flag, &status)); OK(MPI_Request_free(&numbered));
        }
        CHECK(numbered == MPI_REQUEST_NULL && in == way && status.MPI_SOURCE == 0 && status.MPI_TAG == large_tag);
        OK(MPI_Get_count(&status, MPI_INT, &n)); CHECK(n == 1);
        OK(MPI_Test_cancelled(&status, &flag)); CHECK(!flag);
    }
    /* A communicator is disconnected when what was sent on it has left. */
    static char large[1 << 20];
    MPI_Comm apart;
    OK(MPI_Comm_dup(s, &apart));
    OK(MPI_Irecv(large, 1 << 19, MPI_CHAR, 0, 0, apart, &some[0]));
    OK(MPI_Isend(large + (1 << 19), 1 << 19, MPI_CHAR, 0, 0, apart, &some[1]));
    OK(MPI_Request_free(&some[1]));
    OK(MPI_Wait(&some[0], MPI_STATUS_IGNORE));
    OK(MPI_Comm_disconnect(&apart)); CHECK(apart == MPI_COMM_NULL);
}

/* A pair of transfers whose request is freed before its end goes on to it. */
static void freed_pair(int peer) {
    int give = 100 + rank;
    volatile int got = -1;
    MPI_Request request;
    if (rank == 0) {
        OK(MPI_Isendrecv(&give, 1, MPI_INT, peer, 31, (int *)&got, 1, MPI_INT, peer, 32,
                         MPI_COMM_WORLD, &request));
        OK(MPI_Request_free(&request));
        OK(MPI_Send(&give, 0, MPI_INT, peer, 33, MPI_COMM_WORLD));
        int flag;
        while (got == -1) OK(MPI_Iprobe(peer, 34, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE));
        CHECK(got == 101);
    } else {
        int taken = -1;
        OK(MPI_Recv(&taken, 0, MPI_INT, peer, 33, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        OK(MPI_Send(&give, 1, MPI_INT, peer, 32, MPI_COMM_WORLD));
        OK(MPI_Recv(&taken, 1, MPI_INT, peer, 31, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        CHECK(taken == 100);
    }
}

/* Windows of receives posted before their messages come, ended in all ways. */
static void windows(int peer) {
    enum { N = 64 };
    MPI_Request in[N], out[N], request;
    MPI_Status statuses[N], status;
    int give[N], got[N], flag, at, n, indices[N];
    for (int round = 0; round < 6; round++) {
        MPI_Comm c;
        OK(MPI_Comm_split(MPI_COMM_WORLD, rank < 2 ? 0 : MPI_UNDEFINED, rank, &c));
        if (rank >= 2) continue;
        OK(MPI_Comm_set_errhandler(c, MPI_ERRORS_RETURN));
        for (int i = 0; i < N; i++) {
            give[i] = 1000 * round + i, got[i] = -1;
            /* The last but one has no room; one of the last round has a wildcard. */
            int from = round == 5 && i == 9 ? MPI_ANY_SOURCE : peer;
            OK(MPI_Irecv(&got[i], i == N - 2 ? 0 : 1, MPI_INT, from, 3, c, &in[i]));
        }
        OK(MPI_Irecv(&flag, 1, MPI_INT, peer, 4, c, &request));
        OK(MPI_Test(&request, &flag, &status)); CHECK(!flag);
        OK(MPI_Cancel(&request));
        OK(MPI_Wait(&request, &status));
        OK(MPI_Test_cancelled(&status, &flag)); CHECK(flag);
        OK(MPI_Barrier(c));
        for (int i = 0; i < N; i++) OK(MPI_Isend(&give[i], 1, MPI_INT, peer, 3, c, &out[i]));
        OK(MPI_Cancel(&out[0]));
        OK(MPI_Request_free(&out[0])); CHECK(out[0] == MPI_REQUEST_NULL);
        OK(MPI_Request_get_status(out[1], &flag, &status)); CHECK(flag);
        OK(MPI_Testall(N, out, &flag, statuses));
        OK(MPI_Waitall(N, out, MPI_STATUSES_IGNORE));
        for (int i = 0; i < N; i++) CHECK(out[i] == MPI_REQUEST_NULL);
        if (round == 1) OK(MPI_Comm_free(&c));
        int code = MPI_SUCCESS;
        if (round == 2) {
            for (int left = N - 2; left > 0; left -= n) {
                OK(MPI_Waitsome(N - 2, in, &n, indices, statuses));
                CHECK(n > 0);
            }
        } else if (round == 3) {
            for (int left = N - 2; left > 0; left--) {
                OK(MPI_Waitany(N - 2, in, &at, &status));
                CHECK(status.MPI_SOURCE == peer && status.MPI_TAG == 3);
            }
        } else if (round == 4) {
            for (int i = N - 3; i >= 0; i--) {
                OK(MPI_Wait(&in[i], &status));
                OK(MPI_Get_count(&status, MPI_INT, &n)); CHECK(n == 1 && got[i] == give[i]);
            }
        }
        code = MPI_Waitall(N, in, statuses);
        CHECK(code == MPI_ERR_IN_STATUS);
        for (int i = 0; i < N; i++) {
            int class_;
            OK(MPI_Error_class(statuses[i].MPI_ERROR, &class_));
            CHECK(in[i] == MPI_REQUEST_NULL);
            CHECK(class_ == (i == N - 2 ? MPI_ERR_TRUNCATE : MPI_SUCCESS));
            CHECK(got[i] == (i == N - 2 ? -1 : give[i]));
        }
        if (round != 1) OK(MPI_Comm_free(&c));
    }
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    if (rank < 2) { blocking(1 - rank); requests(1 - rank); others(1 - rank); freed_pair(1 - rank); }
    windows(1 - rank);
    short_sends();
    return end();
}
