/* Counts, tags, ranks, roots, types, pointers and buffers that make no sense. */
#include "check.h"

static int x, y, n, flag, many[64];
static MPI_Request request;
static MPI_Status status;

static void point_to_point(MPI_Datatype raw) {
    MPI_Comm w = MPI_COMM_WORLD;
    FAILS(MPI_Send(&x, -1, MPI_INT, 0, 0, w), MPI_ERR_COUNT);
    FAILS(MPI_Send_c(&x, -1, MPI_INT, 0, 0, w), MPI_ERR_COUNT);
    FAILS(MPI_Recv(&x, -2, MPI_INT, 0, 0, w, &status), MPI_ERR_COUNT);
    FAILS(MPI_Isend(&x, -1, MPI_INT, 0, 0, w, &request), MPI_ERR_COUNT);
    FAILS(MPI_Sendrecv(&x, 1, MPI_INT, 0, 0, &y, -1, MPI_INT, 0, 0, w, &status), MPI_ERR_COUNT);
    int ranks[] = {size, -7, 1 << 30, MPI_ROOT};
    for (int i = 0; i < 4; i++) {
        FAILS(MPI_Send(&x, 1, MPI_INT, ranks[i], 0, w), MPI_ERR_RANK);
        FAILS(MPI_Issend(&x, 1, MPI_INT, ranks[i], 0, w, &request), MPI_ERR_RANK);
        FAILS(MPI_Recv(&x, 1, MPI_INT, ranks[i], 0, w, &status), MPI_ERR_RANK);
        FAILS(MPI_Irecv(&x, 1, MPI_INT, ranks[i], 0, w, &request), MPI_ERR_RANK);
        FAILS(MPI_Probe(ranks[i], 0, w, &status), MPI_ERR_RANK);
        FAILS(MPI_Send_init(&x, 1, MPI_INT, ranks[i], 0, w, &request), MPI_ERR_RANK);
    }
    FAILS(MPI_Send(&x, 1, MPI_INT, MPI_ANY_SOURCE, 0, w), MPI_ERR_RANK);
    int *ub, tags[] = {-5, 0, MPI_ANY_TAG};
    OK(MPI_Comm_get_attr(w, MPI_TAG_UB, &ub, &flag));
    tags[1] = *ub == 0x7fffffff ? -9 : *ub + 1;
    for (int i = 0; i < 3; i++) FAILS(MPI_Send(&x, 1, MPI_INT, 0, tags[i], w), MPI_ERR_TAG);
    for (int i = 0; i < 2; i++) {
        FAILS(MPI_Recv(&x, 1, MPI_INT, 0, tags[i], w, &status), MPI_ERR_TAG);
        FAILS(MPI_Iprobe(0, tags[i], w, &flag, &status), MPI_ERR_TAG);
    }
    FAILS(MPI_Send(&x, 1, raw, 0, 0, w), MPI_ERR_TYPE);
    FAILS(MPI_Irecv(&x, 1, raw, 0, 0, w, &request), MPI_ERR_TYPE);
    void *bad[] = {NULL, MPI_IN_PLACE, MPI_BUFFER_AUTOMATIC};
    for (int i = 0; i < 3; i++) {
        FAILS(MPI_Send(bad[i], 1, MPI_INT, 0, 0, w), MPI_ERR_BUFFER);
        FAILS(MPI_Recv(bad[i], 1, MPI_INT, 0, 0, w, &status), MPI_ERR_BUFFER);
        FAILS(MPI_Bcast(bad[i], 1, MPI_INT, 0, w), MPI_ERR_BUFFER);
    }
    FAILS(MPI_Isend(&x, 1, MPI_INT, 0, 0, MPI_COMM_SELF, NULL), MPI_ERR_ARG);
    FAILS(MPI_Iprobe(0, 0, w, NULL, &status), MPI_ERR_ARG);
    FAILS(MPI_Waitall(-1, &request, &status), MPI_ERR_COUNT);
    FAILS(MPI_Waitall(2, NULL, MPI_STATUSES_IGNORE), MPI_ERR_ARG);
    FAILS(MPI_Wait(NULL, &status), MPI_ERR_ARG);
    FAILS(MPI_Get_count(NULL, MPI_INT, &n), MPI_ERR_ARG);

    /* A message that is too long, alone and among others. */
    MPI_Comm s = MPI_COMM_SELF;
    MPI_Request two[2];
    MPI_Status of[2];
    OK(MPI_Isend(many, 8, MPI_INT, 0, 1, s, &request));
    FAILS(MPI_Recv(&x, 1, MPI_INT, 0, 1, s, &status), MPI_ERR_TRUNCATE);
    OK(MPI_Wait(&request, &status));
    OK(MPI_Irecv(&x, 1, MPI_INT, 0, 1, s, &two[0]));
    OK(MPI_Irecv(&y, 1, MPI_INT, 0, 2, s, &two[1]));
    OK(MPI_Send(many, 8, MPI_INT, 0, 1, s));
    OK(MPI_Send(many, 1, MPI_INT, 0, 2, s));
    FAILS(MPI_Waitall(2, two, of), MPI_ERR_IN_STATUS);
    OK(MPI_Error_class(of[0].MPI_ERROR, &n));
    CHECK(n == MPI_ERR_TRUNCATE && of[1].MPI_ERROR == MPI_SUCCESS);
    CHECK(two[0] == MPI_REQUEST_NULL && two[1] == MPI_REQUEST_NULL);

    /* Persistent requests out of turn. */
    OK(MPI_Send_init(&x, 1, MPI_INT, 0, 3, s, &request));
    OK(MPI_Start(&request));
    FAILS(MPI_Start(&request), MPI_ERR_REQUEST);
    OK(MPI_Recv(&y, 1, MPI_INT, 0, 3, s, &status));
    OK(MPI_Wait(&request, &status));
    OK(MPI_Wait(&request, &status));
    OK(MPI_Request_free(&request));
    OK(MPI_Irecv(&x, 1, MPI_INT, 0, 4, s, &request));
    FAILS(MPI_Start(&request), MPI_ERR_REQUEST);
    OK(MPI_Cancel(&request));
    OK(MPI_Wait(&request, &status));
    OK(MPI_Test_cancelled(&status, &flag));
    CHECK(flag);
}

static void buffered(void) {
    static char room[256];
    void *address;
    FAILS(MPI_Bsend(&x, 1, MPI_INT, 0, 0, MPI_COMM_SELF), MPI_ERR_BUFFER);
    FAILS(MPI_Buffer_attach(room, -1), MPI_ERR_ARG);
    OK(MPI_Buffer_attach(room, sizeof room));
    FAILS(MPI_Buffer_attach(room, sizeof room), MPI_ERR_BUFFER);
    FAILS(MPI_Bsend(many, 64, MPI_LONG_LONG, 0, 0, MPI_COMM_SELF), MPI_ERR_BUFFER);
    OK(MPI_Buffer_detach(&address, &n));
    CHECK(address == room && n == sizeof room);
}

static void collectives(MPI_Datatype raw) {
    MPI_Comm w = MPI_COMM_WORLD;
    int roots[] = {size, -1, MPI_ROOT, MPI_PROC_NULL};
    for (int i = 0; i < 4; i++) {
        FAILS(MPI_Bcast(&x, 1, MPI_INT, roots[i], w), MPI_ERR_ROOT);
        FAILS(MPI_Reduce(&x, &y, 1, MPI_INT, MPI_SUM, roots[i], w), MPI_ERR_ROOT);
        FAILS(MPI_Igather(&x, 1, MPI_INT, many, 1, MPI_INT, roots[i], w, &request), MPI_ERR_ROOT);
        FAILS(MPI_Scatterv(many, many, many, MPI_INT, &x, 1, MPI_INT, roots[i], w), MPI_ERR_ROOT);
    }
    int negative[2] = {-1, -1}, ones[2] = {1, 1}, at[2] = {0, 1};
    FAILS(MPI_Bcast(&x, -1, MPI_INT, 0, w), MPI_ERR_COUNT);
    FAILS(MPI_Allreduce(&x, &y, -1, MPI_INT, MPI_SUM, w), MPI_ERR_COUNT);
    FAILS(MPI_Allgather(&x, 1, MPI_INT, many, -1, MPI_INT, w), MPI_ERR_COUNT);
    FAILS(MPI_Allgatherv(&x, 1, MPI_INT, many, negative, at, MPI_INT, w), MPI_ERR_COUNT);
    FAILS(MPI_Allgatherv(&x, 1, MPI_INT, many, NULL, at, MPI_INT, w), MPI_ERR_ARG);
    FAILS(MPI_Alltoallv(many, ones, NULL, MPI_INT, many + 8, ones, at, MPI_INT, w), MPI_ERR_ARG);
    FAILS(MPI_Reduce_scatter(many, many + 8, negative, MPI_INT, MPI_SUM, w), MPI_ERR_COUNT);
    FAILS(MPI_Allreduce(&x, &y, 1, raw, MPI_SUM, w), MPI_ERR_TYPE);
    FAILS(MPI_Bcast(&x, 1, raw, 0, w), MPI_ERR_TYPE);
    /* Operators that are not defined for a type. */
    FAILS(MPI_Allreduce(&x, &y, 1, MPI_FLOAT, MPI_BAND, w), MPI_ERR_OP);
    FAILS(MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_MAXLOC, w), MPI_ERR_OP);
    FAILS(MPI_Reduce_local(&x, &y, 1, MPI_FLOAT, MPI_BXOR), MPI_ERR_OP);
    FAILS(MPI_Allreduce(&x, MPI_IN_PLACE, 1, MPI_INT, MPI_SUM, w), MPI_ERR_BUFFER);
    FAILS(MPI_Allreduce(NULL, &y, 1, MPI_INT, MPI_SUM, w), MPI_ERR_BUFFER);
    FAILS(MPI_Op_create(NULL, 1, (MPI_Op *)many), MPI_ERR_ARG);
    /* Afterwards all is well. */
    x = 1;
    OK(MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, w));
    CHECK(y == size);
}

static void types(void) {
    MPI_Datatype made;
    int one = 1, zero = 0, two = 2, minus = -1;
    FAILS(MPI_Type_contiguous(-1, MPI_INT, &made), MPI_ERR_COUNT);
    FAILS(MPI_Type_vector(-1, 1, 1, MPI_INT, &made), MPI_ERR_COUNT);
    FAILS(MPI_Type_indexed(1, &minus, &zero, MPI_INT, &made), MPI_ERR_COUNT);
    FAILS(MPI_Type_indexed(1, NULL, &zero, MPI_INT, &made), MPI_ERR_ARG);
    FAILS(MPI_Type_create_subarray(1, &two, &two, &one, MPI_ORDER_C, MPI_INT, &made), MPI_ERR_ARG);
    FAILS(MPI_Type_create_subarray(0, &two, &two, &one, MPI_ORDER_C, MPI_INT, &made), MPI_ERR_ARG);
    FAILS(MPI_Type_create_subarray(1, &two, &one, &zero, 12345, MPI_INT, &made), MPI_ERR_ARG);
    FAILS(MPI_Type_contiguous(1, MPI_INT, NULL), MPI_ERR_ARG);
    FAILS(MPI_Type_match_size(MPI_TYPECLASS_REAL, 3, &made), MPI_ERR_ARG);
    int at = 60;
    FAILS(MPI_Pack(&x, 2, MPI_INT, many, 64, &at, MPI_COMM_SELF), MPI_ERR_ARG);
    at = -1;
    FAILS(MPI_Pack(&x, 1, MPI_INT, many, 64, &at, MPI_COMM_SELF), MPI_ERR_ARG);
    MPI_Aint far = 0;
    FAILS(MPI_Pack_external("internal", &x, 1, MPI_INT, many, 64, &far), MPI_ERR_UNSUPPORTED_DATAREP);
}

static void groups_and_grids(void) {
    MPI_Group all, made;
    MPI_Comm comm;
    int dims[2] = {0, -2}, periods[2] = {0, 0}, big[2] = {size, 2}, twice[2] = {0, 0}, off = size;
    OK(MPI_Comm_group(MPI_COMM_WORLD, &all));
    FAILS(MPI_Group_incl(all, 1, &off, &made), MPI_ERR_RANK);
    FAILS(MPI_Group_incl(all, 2, twice, &made), MPI_ERR_RANK);
    FAILS(MPI_Group_excl(all, -1, twice, &made), MPI_ERR_ARG);
    int range[1][3] = {{0, size - 1, 0}};
    FAILS(MPI_Group_range_incl(all, 1, range, &made), MPI_ERR_RANK);
    FAILS(MPI_Group_translate_ranks(all, 1, &off, all, &n), MPI_ERR_RANK);
    OK(MPI_Group_free(&all));
    FAILS(MPI_Dims_create(size, 2, dims), MPI_ERR_DIMS);
    FAILS(MPI_Cart_create(MPI_COMM_WORLD, 2, big, periods, 0, &comm), MPI_ERR_ARG);
    FAILS(MPI_Cart_create(MPI_COMM_WORLD, -1, big, periods, 0, &comm), MPI_ERR_ARG);
    FAILS(MPI_Comm_split(MPI_COMM_WORLD, -5, 0, &comm), MPI_ERR_ARG);
    FAILS(MPI_Comm_split_type(MPI_COMM_WORLD, 4711, 0, MPI_INFO_NULL, &comm), MPI_ERR_ARG);
    FAILS(MPI_Comm_dup(MPI_COMM_SELF, NULL), MPI_ERR_ARG);
    FAILS(MPI_Comm_rank(MPI_COMM_WORLD, NULL), MPI_ERR_ARG);
    FAILS(MPI_Comm_set_name(MPI_COMM_WORLD, NULL), MPI_ERR_ARG);
    MPI_Info info;
    char key[MPI_MAX_INFO_KEY + 8];
    memset(key, 'k', sizeof key);
    key[sizeof key - 1] = 0;
    OK(MPI_Info_create(&info));
    FAILS(MPI_Info_set(info, key, "v"), MPI_ERR_INFO_KEY);
    FAILS(MPI_Info_set(info, "", "v"), MPI_ERR_INFO_KEY);
    FAILS(MPI_Info_get_nthkey(info, 0, key), MPI_ERR_ARG);
    OK(MPI_Info_free(&info));
    FAILS(MPI_Error_class(-3, &n), MPI_ERR_ARG);
    FAILS(MPI_Add_error_string(MPI_ERR_ARG, "mine"), MPI_ERR_ARG);
    FAILS(MPI_Alloc_mem(-1, MPI_INFO_NULL, &info), MPI_ERR_ARG);
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    MPI_Datatype raw;
    OK(MPI_Type_contiguous(2, MPI_INT, &raw));
    point_to_point(raw);
    buffered();
    collectives(raw);
    types();
    groups_and_grids();
    OK(MPI_Type_free(&raw));
    return end();
}
