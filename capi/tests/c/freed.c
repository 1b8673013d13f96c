/* Partitioned requests that are freed while they are active go on to their ends, while their
 * owners wait for others. */
#include "check.h"

enum { PARTS = 8, EACH = 40000 };

static int freed[PARTS * EACH], kept[PARTS * EACH];

/* The ends that are freed, of the one transfer; the other transfer is waited for. */
static void pair(int free_send, int free_recv, int ready_after) {
    MPI_Request first, second;
    int flag = 0;
    for (int i = 0; i < PARTS * EACH; i++) freed[i] = kept[i] = rank ? -1 : i;
    if (rank == 0) {
        OK(MPI_Psend_init(freed, PARTS, EACH, MPI_INT, 1, 1, MPI_COMM_WORLD, MPI_INFO_NULL, &first));
        OK(MPI_Psend_init(kept, PARTS, EACH, MPI_INT, 1, 2, MPI_COMM_WORLD, MPI_INFO_NULL, &second));
        OK(MPI_Start(&first));
        OK(MPI_Start(&second));
        OK(MPI_Pready_range(0, PARTS - 1, first));
        if (!ready_after) OK(MPI_Pready_range(0, PARTS - 1, second));
        if (free_send) OK(MPI_Request_free(&first));
        if (ready_after) OK(MPI_Pready_range(0, PARTS - 1, second));
        OK(MPI_Wait(&second, MPI_STATUS_IGNORE));
        OK(MPI_Wait(&first, MPI_STATUS_IGNORE));
        if (!free_send) OK(MPI_Request_free(&first));
    } else {
        OK(MPI_Precv_init(freed, PARTS, EACH, MPI_INT, 0, 1, MPI_COMM_WORLD, MPI_INFO_NULL, &first));
        OK(MPI_Precv_init(kept, PARTS, EACH, MPI_INT, 0, 2, MPI_COMM_WORLD, MPI_INFO_NULL, &second));
        OK(MPI_Start(&first));
        OK(MPI_Start(&second));
        if (free_recv) OK(MPI_Request_free(&first));
        while (!flag) OK(MPI_Test(&second, &flag, MPI_STATUS_IGNORE));
        OK(MPI_Wait(&first, MPI_STATUS_IGNORE));
        if (!free_recv) OK(MPI_Request_free(&first));
        for (int i = 0; i < PARTS * EACH; i++) CHECK(kept[i] == i);
        if (!free_recv)
            for (int i = 0; i < PARTS * EACH; i++) CHECK(freed[i] == i);
    }
    OK(MPI_Request_free(&second));
    /* Nobody waits for what was freed, but it ends: its sender or receiver, who has waited,
     * is here, too. */
    OK(MPI_Barrier(MPI_COMM_WORLD));
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    for (int after = 0; after < 2; after++) {
        pair(0, 0, after);
        pair(1, 0, after);
        pair(0, 1, after);
        pair(1, 1, after);
    }
    return end();
}
