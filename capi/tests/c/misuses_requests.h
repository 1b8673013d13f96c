/* The misuses of requests, and messages that are too long for their buffers; part of
 * misuses.c. */

/* ---- requests ---- */

static int wait_for_a_freed_receive(void) {
    OK(MPI_Irecv(&x, 1, MPI_INT, 0, 1, SELF, &r));
    MPI_Request copy = r;
    OK(MPI_Request_free(&r));
    OK(MPI_Send(&y, 1, MPI_INT, 0, 1, SELF));
    return MPI_Wait(&copy, IGNORE);
}

static int free_a_request_twice(void) {
    OK(MPI_Send_init(&x, 1, MPI_INT, 0, 1, SELF, &r));
    MPI_Request copy = r;
    OK(MPI_Request_free(&r));
    return MPI_Request_free(&copy);
}

static int start_a_freed_request(void) {
    OK(MPI_Recv_init(&x, 1, MPI_INT, 0, 1, SELF, &r));
    MPI_Request copy = r;
    OK(MPI_Request_free(&r));
    return MPI_Start(&copy);
}

static int start_all_with_a_null_request(void) {
    MPI_Request two[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    return MPI_Startall(2, two);
}

static int one_request_twice_in_waitall(void) {
    MPI_Request two[2];
    OK(MPI_Irecv(&x, 1, MPI_INT, 0, 1, SELF, &two[0]));
    two[1] = two[0];
    OK(MPI_Send(&y, 1, MPI_INT, 0, 1, SELF));
    return MPI_Waitall(2, two, MPI_STATUSES_IGNORE);
}

static int one_request_twice_in_testsome(void) {
    MPI_Request two[2];
    int at[2];
    OK(MPI_Irecv(&x, 1, MPI_INT, 0, 1, SELF, &two[0]));
    two[1] = two[0];
    OK(MPI_Send(&y, 1, MPI_INT, 0, 1, SELF));
    return MPI_Testsome(2, two, &n, at, MPI_STATUSES_IGNORE);
}

static int waitany_of_a_negative_number(void) {
    return MPI_Waitany(-2, &r, &n, IGNORE);
}

static int cancel_a_null_request(void) {
    r = MPI_REQUEST_NULL;
    return MPI_Cancel(&r);
}

static int cancel_a_collective(void) {
    MPI_Request copy;
    OK(MPI_Ibarrier(W, &r));
    copy = r;
    int code = MPI_Cancel(&copy);
    OK(MPI_Wait(&r, IGNORE));
    return code;
}

static int free_a_collective_request(void) {
    OK(MPI_Ibarrier(W, &r));
    MPI_Request copy = r;
    int code = MPI_Request_free(&copy);
    OK(MPI_Wait(&r, IGNORE));
    return code;
}

static int pready_before_start(void) {
    OK(MPI_Psend_init(many, 4, 1, MPI_INT, 0, 1, SELF, NONE, &r));
    int code = MPI_Pready(0, r);
    OK(MPI_Request_free(&r));
    return code;
}

static int partition(int number, int times) {
    MPI_Request other;
    int code = MPI_SUCCESS;
    OK(MPI_Psend_init(many, 4, 1, MPI_INT, 0, 1, SELF, NONE, &r));
    OK(MPI_Precv_init(many + 8, 4, 1, MPI_INT, 0, 1, SELF, NONE, &other));
    OK(MPI_Start(&r));
    OK(MPI_Start(&other));
    for (int i = 0; i < times; i++) code = MPI_Pready(number, r);
    for (int i = 0; i < 4; i++)
        if (times == 1 || i != number) OK(MPI_Pready(i, r));
    OK(MPI_Wait(&r, IGNORE));
    OK(MPI_Wait(&other, IGNORE));
    OK(MPI_Request_free(&r));
    OK(MPI_Request_free(&other));
    return code;
}

static int pready_beyond_the_last_partition(void) { return partition(4, 1); }
static int pready_twice(void) { return partition(2, 2); }

static int parrived_of_a_send(void) {
    OK(MPI_Psend_init(many, 4, 1, MPI_INT, 0, 1, SELF, NONE, &r));
    int code = MPI_Parrived(r, 0, &flag);
    OK(MPI_Request_free(&r));
    return code;
}

static int query(void *state, MPI_Status *of) {
    (void)state;
    MPI_Status_set_elements(of, MPI_BYTE, 0);
    MPI_Status_set_cancelled(of, 0);
    return MPI_SUCCESS;
}
static int release(void *state) { return state ? MPI_ERR_OTHER : MPI_SUCCESS; }
static int cancels(void *state, int complete) { return state && complete ? MPI_ERR_OTHER : MPI_SUCCESS; }

static int complete_a_grequest_twice(void) {
    OK(MPI_Grequest_start(query, release, cancels, NULL, &r));
    OK(MPI_Grequest_complete(r));
    int code = MPI_Grequest_complete(r);
    OK(MPI_Wait(&r, IGNORE));
    return code;
}

static int complete_a_receive_as_grequest(void) {
    OK(MPI_Irecv(&x, 1, MPI_INT, 0, 1, SELF, &r));
    int code = MPI_Grequest_complete(r);
    OK(MPI_Send(&y, 1, MPI_INT, 0, 1, SELF));
    OK(MPI_Wait(&r, IGNORE));
    return code;
}

static int receive_a_message_twice(void) {
    MPI_Message message, copy;
    OK(MPI_Isend(&x, 1, MPI_INT, 0, 1, SELF, &r));
    OK(MPI_Mprobe(0, 1, SELF, &message, IGNORE));
    copy = message;
    OK(MPI_Mrecv(&y, 1, MPI_INT, &message, IGNORE));
    OK(MPI_Wait(&r, IGNORE));
    return MPI_Mrecv(&y, 1, MPI_INT, &copy, IGNORE);
}

static int elements_of_an_ignored_status(void) {
    return MPI_Status_set_elements(MPI_STATUS_IGNORE, MPI_INT, 1);
}

/* ---- truncation ---- */

static int truncated_rendezvous(void) {
    if (rank == 0) OK(MPI_Ssend(text, sizeof text, MPI_CHAR, 1, 1, W));
    int code = rank ? MPI_Recv(many, 4, MPI_INT, 0, 1, W, IGNORE) : MPI_ERR_TRUNCATE;
    return code;
}

static int truncated_in_sendrecv(void) {
    return MPI_Sendrecv(many, 8, MPI_INT, 1 - rank, 1, &x, 1, MPI_INT, 1 - rank, 1, W, IGNORE);
}

static int truncated_in_mrecv(void) {
    MPI_Message message;
    OK(MPI_Isend(many, 8, MPI_INT, 0, 1, SELF, &r));
    OK(MPI_Mprobe(0, 1, SELF, &message, IGNORE));
    int code = MPI_Mrecv(&x, 1, MPI_INT, &message, IGNORE);
    OK(MPI_Wait(&r, IGNORE));
    return code;
}

static int truncated_persistent_in_testall(void) {
    MPI_Request two[2];
    MPI_Status of[2];
    OK(MPI_Recv_init(&x, 1, MPI_INT, 0, 1, SELF, &two[0]));
    OK(MPI_Recv_init(&y, 1, MPI_INT, 0, 2, SELF, &two[1]));
    OK(MPI_Startall(2, two));
    OK(MPI_Send(many, 8, MPI_INT, 0, 1, SELF));
    OK(MPI_Send(many, 1, MPI_INT, 0, 2, SELF));
    int code = MPI_Testall(2, two, &flag, of);
    OK(MPI_Request_free(&two[0]));
    OK(MPI_Request_free(&two[1]));
    return code;
}

static int broadcast_longer_than_the_buffer(void) {
    /* The root may or may not notice. */
    int code = MPI_Bcast(many, rank ? 1 : 32, MPI_INT, 0, W);
    return rank ? code : MPI_ERR_TRUNCATE;
}
