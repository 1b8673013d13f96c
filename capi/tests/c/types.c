/* Datatypes. */
#include "check.h"
#include <stddef.h>

struct particle { char kind; double place[3]; int id; };

static void constructors(void) {
    int matrix[6][5], column[6], n, ni, na, nd, combiner, args[8];
    MPI_Aint lb, extent;
    for (int i = 0; i < 30; i++) matrix[i / 5][i % 5] = i;
    MPI_Datatype vector, type, types[4], copy;
    OK(MPI_Type_vector(6, 1, 5, MPI_INT, &vector));
    FAILS(MPI_Send(matrix, 1, vector, 0, 0, MPI_COMM_SELF), MPI_ERR_TYPE);
    OK(MPI_Type_commit(&vector));
    OK(MPI_Sendrecv(&matrix[0][2], 1, vector, 0, 0, column, 6, MPI_INT, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE));
    for (int i = 0; i < 6; i++) CHECK(column[i] == 5 * i + 2);
    OK(MPI_Type_size(vector, &n)); CHECK(n == 24);
    OK(MPI_Type_get_extent(vector, &lb, &extent)); CHECK(lb == 0 && extent == 26 * 4);
    OK(MPI_Type_get_envelope(vector, &ni, &na, &nd, &combiner));
    CHECK(ni == 3 && na == 0 && nd == 1 && combiner == MPI_COMBINER_VECTOR);
    OK(MPI_Type_get_contents(vector, 8, 0, 4, args, NULL, types));
    CHECK(args[0] == 6 && args[1] == 1 && args[2] == 5 && types[0] == MPI_INT);
    OK(MPI_Type_create_resized(vector, 0, 4, &type));
    OK(MPI_Type_get_extent(type, &lb, &extent)); CHECK(extent == 4);
    OK(MPI_Type_get_true_extent(type, &lb, &extent)); CHECK(lb == 0 && extent == 104);
    OK(MPI_Type_free(&type)); CHECK(type == MPI_DATATYPE_NULL);

    /* The large form tells its contents in counts. */
    MPI_Count c[4], li, la, lc, ld;
    OK(MPI_Type_vector_c(6, 1, 5, MPI_INT, &type));
    OK(MPI_Type_get_envelope_c(type, &li, &la, &lc, &ld, &combiner));
    CHECK(li == 0 && lc == 3 && ld == 1);
    OK(MPI_Type_get_contents_c(type, 0, 0, 4, 4, args, NULL, c, types));
    CHECK(c[0] == 6 && c[2] == 5);
    OK(MPI_Type_free(&type));

    /* A struct, and what lies in it. */
    struct particle p[2] = {{'a', {1, 2, 3}, 7}, {'b', {4, 5, 6}, 8}}, q[2];
    int lengths[] = {1, 3, 1};
    MPI_Aint at[] = {offsetof(struct particle, kind), offsetof(struct particle, place), offsetof(struct particle, id)};
    MPI_Datatype fields[] = {MPI_CHAR, MPI_DOUBLE, MPI_INT};
    OK(MPI_Type_create_struct(3, lengths, at, fields, &type));
    OK(MPI_Type_commit(&type));
    OK(MPI_Type_get_extent(type, &lb, &extent)); CHECK(extent == sizeof p[0]);
    memset(q, 0, sizeof q);
    MPI_Status status;
    OK(MPI_Sendrecv(p, 2, type, 0, 0, q, 2, type, 0, 0, MPI_COMM_SELF, &status));
    CHECK(q[1].kind == 'b' && q[1].place[2] == 6 && q[0].id == 7);
    OK(MPI_Get_count(&status, type, &n)); CHECK(n == 2);
    OK(MPI_Get_elements(&status, type, &n)); CHECK(n == 10);
    OK(MPI_Type_dup(type, &copy));
    OK(MPI_Type_get_envelope(copy, &ni, &na, &nd, &combiner)); CHECK(combiner == MPI_COMBINER_DUP);
    OK(MPI_Type_get_contents(copy, 0, 0, 1, NULL, NULL, types));
    OK(MPI_Type_get_envelope(types[0], &ni, &na, &nd, &combiner));
    CHECK(combiner == MPI_COMBINER_STRUCT && ni == 4 && na == 3 && nd == 3);
    OK(MPI_Type_free(&types[0])); OK(MPI_Type_free(&copy)); OK(MPI_Type_free(&type));
    OK(MPI_Type_free(&vector));
    FAILS(MPI_Type_free(&fields[0]), MPI_ERR_TYPE);

    /* Absolute addresses. */
    int one = 11, two = 22, both[2];
    MPI_Aint places[2];
    OK(MPI_Get_address(&one, &places[0])); OK(MPI_Get_address(&two, &places[1]));
    OK(MPI_Type_create_hindexed_block(2, 1, places, MPI_INT, &type));
    OK(MPI_Type_commit(&type));
    OK(MPI_Sendrecv(MPI_BOTTOM, 1, type, 0, 0, both, 2, MPI_INT, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE));
    CHECK(both[0] == 11 && both[1] == 22);
    OK(MPI_Type_free(&type));

    /* Arrays. */
    int sizes[] = {6, 5}, part[] = {2, 3}, start[] = {1, 2}, piece[6];
    OK(MPI_Type_create_subarray(2, sizes, part, start, MPI_ORDER_C, MPI_INT, &type));
    OK(MPI_Type_commit(&type));
    int position = 0;
    OK(MPI_Pack(matrix, 1, type, piece, sizeof piece, &position, MPI_COMM_SELF));
    CHECK(position == 24 && piece[0] == 7 && piece[5] == 14);
    OK(MPI_Type_get_contents(type, 8, 0, 1, args, NULL, types));
    CHECK(args[0] == 2 && args[1] == 6 && args[4] == 3 && args[7] == MPI_ORDER_C);
    OK(MPI_Type_free(&type));
    int distributions[] = {MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_CYCLIC}, grid[] = {2, 1};
    int darg[] = {MPI_DISTRIBUTE_DFLT_DARG, 2};
    OK(MPI_Type_create_darray(2, 1, 2, sizes, distributions, darg, grid, MPI_ORDER_C, MPI_INT, &type));
    OK(MPI_Type_size(type, &n)); CHECK(n == 15 * 4);
    OK(MPI_Type_free(&type));
}

static void names_and_sizes(void) {
    char name[MPI_MAX_OBJECT_NAME];
    int n, length;
    MPI_Datatype type;
    OK(MPI_Type_get_name(MPI_DOUBLE, name, &length)); CHECK(!strcmp(name, "MPI_DOUBLE"));
    OK(MPI_Type_size(MPI_DOUBLE_INT, &n)); CHECK(n == 12);
    OK(MPI_Type_size(MPI_C_LONG_DOUBLE_COMPLEX, &n)); CHECK(n == 32);
    OK(MPI_Type_match_size(MPI_TYPECLASS_REAL, 8, &type));
    OK(MPI_Type_size(type, &n)); CHECK(n == 8);
    OK(MPI_Type_contiguous(3, MPI_FLOAT, &type));
    OK(MPI_Type_get_name(type, name, &length)); CHECK(length == 0);
    OK(MPI_Type_set_name(type, "colour"));
    OK(MPI_Type_get_name(type, name, &length)); CHECK(!strcmp(name, "colour"));
    OK(MPI_Type_free(&type));
    MPI_Aint size;
    OK(MPI_Pack_external_size("external32", 2, MPI_LONG, &size)); CHECK(size == 8);
    MPI_Aint position = 0;
    unsigned char bytes[8];
    int values[2] = {1, 0x01020304}, back[2];
    OK(MPI_Pack_external("external32", values, 2, MPI_INT, bytes, 8, &position));
    CHECK(position == 8 && bytes[3] == 1 && bytes[4] == 1 && bytes[7] == 4);
    position = 0;
    OK(MPI_Unpack_external("external32", bytes, 8, &position, back, 2, MPI_INT));
    CHECK(back[1] == 0x01020304);
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    constructors();
    names_and_sizes();
    return end();
}
