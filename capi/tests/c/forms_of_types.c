/* Constructors with counts of either size, names of MPI-1, and what is asked of types. */
#include "check.h"

/* Two types have one layout and pack the same. */
static void same(MPI_Datatype one, MPI_Datatype other) {
    static int from[256];
    char left[1024], right[1024];
    MPI_Count sizes[2], lb[2], extent[2], true_lb[2], true_extent[2], at[2] = {0, 0}, room;
    MPI_Datatype types[] = {one, other};
    for (int i = 0; i < 256; i++) from[i] = i;
    for (int i = 0; i < 2; i++) {
        OK(MPI_Type_commit(&types[i]));
        OK(MPI_Type_size_c(types[i], &sizes[i]));
        OK(MPI_Type_get_extent_c(types[i], &lb[i], &extent[i]));
        OK(MPI_Type_get_true_extent_c(types[i], &true_lb[i], &true_extent[i]));
        OK(MPI_Pack_size_c(1, types[i], MPI_COMM_SELF, &room)); CHECK(room <= (MPI_Count)sizeof left);
        OK(MPI_Pack_c(from, 1, types[i], i ? right : left, sizeof left, &at[i], MPI_COMM_SELF));
    }
    CHECK(sizes[0] == sizes[1] && lb[0] == lb[1] && extent[0] == extent[1] && at[0] == at[1]);
    CHECK(true_lb[0] == true_lb[1] && true_extent[0] == true_extent[1]);
    CHECK(sizes[0] > 0 && !memcmp(left, right, at[0]));
    /* The other ways to ask. */
    MPI_Count n, more;
    MPI_Aint begin, width;
    int size_of;
    OK(MPI_Type_size_x(one, &n)); CHECK(n == sizes[0]);
    OK(MPI_Type_size(one, &size_of)); CHECK(size_of == sizes[0]);
    OK(MPI_Type_get_extent_x(one, &n, &more)); CHECK(n == lb[0] && more == extent[0]);
    OK(MPI_Type_get_true_extent_x(one, &n, &more)); CHECK(n == true_lb[0] && more == true_extent[0]);
    OK(MPI_Type_get_true_extent(one, &begin, &width)); CHECK(begin == true_lb[0] && width == true_extent[0]);
    /* What was packed comes back, and so does its external form. */
    int back[256], again[256];
    MPI_Count place = 0, external = 0;
    memset(back, 0, sizeof back); memset(again, 0, sizeof again);
    OK(MPI_Unpack_c(left, at[0], &place, back, 1, other, MPI_COMM_SELF)); CHECK(place == at[0]);
    place = 0;
    OK(MPI_Pack_external_size_c("external32", 1, one, &external)); CHECK(external == sizes[0]);
    OK(MPI_Pack_external_c("external32", from, 1, one, right, sizeof right, &place)); CHECK(place == external);
    place = 0;
    OK(MPI_Unpack_external_c("external32", right, external, &place, again, 1, other));
    CHECK(place == external && !memcmp(back, again, sizeof back));
    OK(MPI_Type_free(&types[0])); OK(MPI_Type_free(&types[1]));
}

static void constructors(void) {
    int lengths[] = {2, 1}, places[] = {4, 0}, sizes[] = {6, 5}, parts[] = {3, 2}, starts[] = {1, 2};
    int ways[] = {MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_CYCLIC};
    int how[] = {MPI_DISTRIBUTE_DFLT_DARG, 2}, grid[] = {2, 1};
    MPI_Count lengths_c[] = {2, 1}, places_c[] = {4, 0}, bytes_c[] = {16, 0}, sizes_c[] = {6, 5};
    MPI_Count parts_c[] = {3, 2}, starts_c[] = {1, 2};
    MPI_Aint bytes[] = {16, 0};
    MPI_Datatype one, other, mixed[] = {MPI_INT, MPI_INT};
    OK(MPI_Type_contiguous(3, MPI_INT, &one)); OK(MPI_Type_contiguous_c(3, MPI_INT, &other)); same(one, other);
    OK(MPI_Type_vector(3, 2, 4, MPI_INT, &one)); OK(MPI_Type_vector_c(3, 2, 4, MPI_INT, &other)); same(one, other);
    OK(MPI_Type_create_hvector(3, 2, 16, MPI_INT, &one));
    OK(MPI_Type_create_hvector_c(3, 2, 16, MPI_INT, &other)); same(one, other);
    OK(MPI_Type_indexed(2, lengths, places, MPI_INT, &one));
    OK(MPI_Type_indexed_c(2, lengths_c, places_c, MPI_INT, &other)); same(one, other);
    OK(MPI_Type_create_hindexed(2, lengths, bytes, MPI_INT, &one));
    OK(MPI_Type_create_hindexed_c(2, lengths_c, bytes_c, MPI_INT, &other)); same(one, other);
    OK(MPI_Type_create_indexed_block(2, 2, places, MPI_INT, &one));
    OK(MPI_Type_create_indexed_block_c(2, 2, places_c, MPI_INT, &other)); same(one, other);
    OK(MPI_Type_create_hindexed_block(2, 2, bytes, MPI_INT, &one));
    OK(MPI_Type_create_hindexed_block_c(2, 2, bytes_c, MPI_INT, &other)); same(one, other);
    OK(MPI_Type_create_struct(2, lengths, bytes, mixed, &one));
    OK(MPI_Type_create_struct_c(2, lengths_c, bytes_c, mixed, &other)); same(one, other);
    OK(MPI_Type_create_resized(MPI_INT, -4, 12, &one));
    OK(MPI_Type_create_resized_c(MPI_INT, -4, 12, &other)); same(one, other);
    OK(MPI_Type_create_subarray(2, sizes, parts, starts, MPI_ORDER_C, MPI_INT, &one));
    OK(MPI_Type_create_subarray_c(2, sizes_c, parts_c, starts_c, MPI_ORDER_C, MPI_INT, &other)); same(one, other);
    OK(MPI_Type_create_darray(2, 1, 2, sizes, ways, how, grid, MPI_ORDER_FORTRAN, MPI_INT, &one));
    OK(MPI_Type_create_darray_c(2, 1, 2, sizes_c, ways, how, grid, MPI_ORDER_FORTRAN, MPI_INT, &other));
    same(one, other);
}

/* Names that MPI-3 removed; MPICH's library of the standard interface has none. */
static void removed(void) {
#ifndef NO_REMOVED
    int lengths[] = {2, 1}, place;
    MPI_Aint bytes[] = {16, 0}, n, address;
    MPI_Datatype one, other, mixed[] = {MPI_INT, MPI_INT};
    OK(MPI_Type_create_hvector(3, 2, 16, MPI_INT, &one));
    OK(MPI_Type_hvector(3, 2, 16, MPI_INT, &other)); same(one, other);
    OK(MPI_Type_create_hindexed(2, lengths, bytes, MPI_INT, &one));
    OK(MPI_Type_hindexed(2, lengths, bytes, MPI_INT, &other)); same(one, other);
    OK(MPI_Type_create_struct(2, lengths, bytes, mixed, &one));
    OK(MPI_Type_struct(2, lengths, bytes, mixed, &other)); same(one, other);
    OK(MPI_Type_create_resized(MPI_INT, -4, 12, &one));
    OK(MPI_Type_extent(one, &n)); CHECK(n == 12);
    OK(MPI_Type_lb(one, &n)); CHECK(n == -4);
    OK(MPI_Type_ub(one, &n)); CHECK(n == 8);
    OK(MPI_Type_free(&one));
    OK(MPI_Address(&place, &n)); OK(MPI_Get_address(&place, &address)); CHECK(n == address);
#endif
}

static int copied, deleted;

static int copy(MPI_Datatype type, int key, void *extra, void *in, void *out, int *flag) {
    (void)type; (void)key;
    copied++;
    CHECK(extra == &copied);
    *(void **)out = in;
    *flag = 1;
    return MPI_SUCCESS;
}

static int delete(MPI_Datatype type, int key, void *value, void *extra) {
    (void)type; (void)key; (void)value; (void)extra;
    deleted++;
    return MPI_SUCCESS;
}

static void attributes(void) {
    int key, flag, value = 7, *found;
    MPI_Datatype type, second;
    OK(MPI_Type_create_keyval(copy, delete, &key, &copied));
    OK(MPI_Type_contiguous(2, MPI_INT, &type));
    OK(MPI_Type_get_attr(type, key, &found, &flag)); CHECK(!flag);
    OK(MPI_Type_set_attr(type, key, &value));
    OK(MPI_Type_dup(type, &second)); CHECK(copied == 1);
    OK(MPI_Type_get_attr(second, key, &found, &flag)); CHECK(flag && found == &value);
    OK(MPI_Type_delete_attr(second, key)); CHECK(deleted == 1);
    FAILS(MPI_Type_set_attr(type, MPI_KEYVAL_INVALID, &value), MPI_ERR_KEYVAL);
    OK(MPI_Type_free(&type));
    OK(MPI_Type_free(&second)); CHECK(deleted == 2);
    OK(MPI_Type_free_keyval(&key)); CHECK(key == MPI_KEYVAL_INVALID);
}

static void others(void) {
    MPI_Datatype type;
    int n, numbers[3], with[3];
    OK(MPI_Type_create_f90_integer(9, &type)); OK(MPI_Type_size(type, &n)); CHECK(n == 4);
    OK(MPI_Type_create_f90_real(15, 307, &type)); OK(MPI_Type_size(type, &n)); CHECK(n == 8);
    OK(MPI_Type_get_envelope(type, &numbers[0], &numbers[1], &numbers[2], &n));
    CHECK(n == MPI_COMBINER_F90_REAL && numbers[0] == 2);
    OK(MPI_Type_create_f90_complex(6, 37, &type)); OK(MPI_Type_size(type, &n)); CHECK(n == 8);
    OK(MPI_Type_get_contents(type, 2, 0, 0, with, NULL, NULL)); CHECK(with[0] == 6 && with[1] == 37);
    OK(MPI_Type_get_value_index(MPI_DOUBLE, MPI_INT, &type)); CHECK(type == MPI_DOUBLE_INT);
    CHECK(MPI_Type_fromint(MPI_Type_toint(type)) == type);
    int here[3];
    MPI_Aint at, next;
    OK(MPI_Get_address(&here[0], &at)); OK(MPI_Get_address(&here[2], &next));
    CHECK(MPI_Aint_add(at, 8) == next && MPI_Aint_diff(next, at) == 8);
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    constructors();
    removed();
    attributes();
    others();
    return end();
}
