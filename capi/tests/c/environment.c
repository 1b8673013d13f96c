/* Environment, errors, attributes, info. */
#include "check.h"

static int copies, deletions, handled;

static int copy(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag) {
    (void)comm; (void)key;
    copies++;
    *(void **)out = (char *)in + *(int *)extra;
    *flag = 1;
    return MPI_SUCCESS;
}

static int delete(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm; (void)key; (void)value; (void)extra;
    deletions++;
    return MPI_SUCCESS;
}

static void handler(MPI_Comm *comm, int *code, ...) {
    int class;
    MPI_Error_class(*code, &class);
    CHECK(*comm == MPI_COMM_WORLD && class == MPI_ERR_RANK);
    handled++;
}

/* MPI_Alloc_mem: alignment, sharing, errors. */
static void memory_of_the_library(void) {
    char *memory, *theirs = malloc(300000);
    MPI_Info info;
    OK(MPI_Info_create(&info));
    OK(MPI_Info_set(info, "mpi_minimum_memory_alignment", "65536"));
    for (int i = 0; i < 3; i++) {
        OK(MPI_Alloc_mem(300000, info, &memory));
        CHECK((size_t)memory % 65536 == 0);
        memset(memory, rank + i, 300000);
        OK(MPI_Sendrecv(memory, 300000, MPI_CHAR, (rank + 1) % size, 0, theirs, 300000, MPI_CHAR,
                        (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        for (int k = 0; k < 300000; k++) CHECK(theirs[k] == (rank + size - 1) % size + i);
        OK(MPI_Free_mem(memory));
    }
    OK(MPI_Alloc_mem(0, MPI_INFO_NULL, &memory));
    OK(MPI_Free_mem(memory));
    OK(MPI_Info_set(info, "mpi_minimum_memory_alignment", "100"));
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    FAILS(MPI_Alloc_mem(100, info, &memory), MPI_ERR_INFO_VALUE);
    OK(MPI_Info_free(&info));
    free(theirs);
}

int main(int argc, char **argv) {
    int flag, major, minor, length;
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    void *early, *memory;
    OK(MPI_Initialized(&flag)); CHECK(!flag);
    OK(MPI_Alloc_mem(100, MPI_INFO_NULL, &early)); memset(early, 1, 100);
    OK(MPI_Get_version(&major, &minor)); CHECK(major == 5 && minor == 0);
    OK(MPI_Abi_get_version(&major, &minor)); CHECK(major == 1 && minor == 0);
    begin(&argc, &argv);
    OK(MPI_Initialized(&flag)); CHECK(flag);
    OK(MPI_Finalized(&flag)); CHECK(!flag);
    OK(MPI_Get_library_version(text, &length)); CHECK((int)strlen(text) == length);
    OK(MPI_Get_processor_name(text, &length)); CHECK(length > 0);
    double t = MPI_Wtime();
    CHECK(MPI_Wtick() > 0 && MPI_Wtick() < 1 && MPI_Wtime() >= t);

    /* Error handlers. */
    MPI_Errhandler old, own;
    OK(MPI_Comm_get_errhandler(MPI_COMM_WORLD, &old)); CHECK(old == MPI_ERRORS_ARE_FATAL);
    OK(MPI_Comm_create_errhandler(handler, &own));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, own));
    FAILS(MPI_Send(&flag, 1, MPI_INT, size, 0, MPI_COMM_WORLD), MPI_ERR_RANK);
    CHECK(handled == 1);
    OK(MPI_Errhandler_free(&own)); CHECK(own == MPI_ERRHANDLER_NULL);
    FAILS(MPI_Send(&flag, 1, MPI_INT, -7, 0, MPI_COMM_WORLD), MPI_ERR_RANK);
    CHECK(handled == 2);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    int class, code;
    OK(MPI_Add_error_class(&class)); CHECK(class > MPI_ERR_LASTCODE);
    OK(MPI_Add_error_code(class, &code));
    OK(MPI_Add_error_string(code, "too cold"));
    OK(MPI_Error_string(code, text, &length)); CHECK(!strcmp(text, "too cold"));
    int *last;
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_LASTUSEDCODE, &last, &flag));
    CHECK(flag && *last == code);
    FAILS(code, class);

    /* Attributes. */
    int key, extra = 2, *ub;
    char value[8], *got;
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &ub, &flag));
    CHECK(flag && *ub >= 32767);
    OK(MPI_Comm_create_keyval(copy, delete, &key, &extra));
    OK(MPI_Comm_set_attr(MPI_COMM_WORLD, key, value));
    MPI_Comm dup;
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &dup));
    OK(MPI_Comm_get_attr(dup, key, &got, &flag)); CHECK(flag && got == value + 2);
    OK(MPI_Comm_delete_attr(MPI_COMM_WORLD, key)); CHECK(deletions == 1);
    OK(MPI_Comm_free_keyval(&key)); CHECK(key == MPI_KEYVAL_INVALID);
    OK(MPI_Comm_free(&dup)); CHECK(deletions == 2 && copies == 1);
    CHECK(dup == MPI_COMM_NULL);

    /* Info. */
    MPI_Info info;
    OK(MPI_Info_create(&info));
    OK(MPI_Info_set(info, "colour", "blue"));
    length = 8;
    OK(MPI_Info_get_string(info, "colour", &length, text, &flag));
    CHECK(flag && length == 5 && !strcmp(text, "blue"));
    FAILS(MPI_Info_delete(info, "shape"), MPI_ERR_INFO_NOKEY);
    OK(MPI_Info_free(&info)); CHECK(info == MPI_INFO_NULL);

    /* Misuse is an error, not a crash. */
    FAILS(MPI_Barrier(MPI_COMM_NULL), MPI_ERR_COMM);
    FAILS(MPI_Barrier(dup), MPI_ERR_COMM);
    FAILS(MPI_Send(&flag, 1, MPI_DATATYPE_NULL, 0, 0, MPI_COMM_WORLD), MPI_ERR_TYPE);
    FAILS(MPI_Send(&flag, -1, MPI_INT, 0, 0, MPI_COMM_WORLD), MPI_ERR_COUNT);
    FAILS(MPI_Send(&flag, 1, MPI_INT, 0, -5, MPI_COMM_WORLD), MPI_ERR_TAG);
    FAILS(MPI_Send(NULL, 1, MPI_INT, 0, 0, MPI_COMM_WORLD), MPI_ERR_BUFFER);
    FAILS(MPI_Send(&flag, 1, (MPI_Datatype)(uintptr_t)0xdeadbeef12345678, 0, 0, MPI_COMM_WORLD), MPI_ERR_TYPE);
    FAILS(MPI_Bcast(&flag, 1, MPI_INT, size, MPI_COMM_WORLD), MPI_ERR_ROOT);
    FAILS(MPI_Allreduce(&flag, &key, 1, MPI_INT, MPI_OP_NULL, MPI_COMM_WORLD), MPI_ERR_OP);
    MPI_Request request = (MPI_Request)MPI_COMM_WORLD;
    FAILS(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_REQUEST);
    FAILS(MPI_Init(&argc, &argv), MPI_ERR_OTHER);
    FAILS(MPI_File_open(MPI_COMM_WORLD, "none", MPI_MODE_RDONLY, MPI_INFO_NULL, (MPI_File *)&got), MPI_ERR_UNSUPPORTED_OPERATION);

    /* Handles as integers. */
    CHECK(MPI_Comm_toint(MPI_COMM_WORLD) == 0x101);
    CHECK(MPI_Comm_fromint(0x102) == MPI_COMM_SELF);
    OK(MPI_Comm_dup(MPI_COMM_SELF, &dup));
    CHECK(MPI_Comm_fromint(MPI_Comm_toint(dup)) == dup && MPI_Comm_toint(dup) > 0x1000);
    OK(MPI_Comm_free(&dup));

    /* What is known of Fortran was known before; what processors are shared is told. */
    FAILS(MPI_Abi_set_fortran_booleans(4, &flag, &length), MPI_ERR_ABI);
    OK(MPI_Abi_get_fortran_info(&info));
    FAILS(MPI_Abi_set_fortran_info(info), MPI_ERR_ABI);
    OK(MPI_Info_free(&info));
    OK(MPI_Get_hw_resource_info(&info));
    length = sizeof text;
    OK(MPI_Info_get_string(info, "hwloc://Machine", &length, text, &flag));
    CHECK(flag && !strcmp(text, "true"));
    OK(MPI_Info_free(&info));
    OK(MPI_Pcontrol(1));

    /* Profiling names are the same functions. */
    OK(PMPI_Comm_size(MPI_COMM_WORLD, &length)); CHECK(length == size);
    memory_of_the_library();
    OK(MPI_Free_mem(early));
    OK(MPI_Alloc_mem(1 << 20, MPI_INFO_NULL, &memory)); memset(memory, 1, 1 << 20);
    end();
    OK(MPI_Alloc_mem(100, MPI_INFO_NULL, &early)); memset(early, 1, 100);
    CHECK(((char *)memory)[(1 << 20) - 1] == 1);
    OK(MPI_Free_mem(memory));
    OK(MPI_Free_mem(early));
    return 0;
}
