/* The tool interface: variables, categories, sessions. */
#include "check.h"

static int cvar_named(const char *wanted, MPI_Datatype type) {
    int n, at;
    OK(MPI_T_cvar_get_num(&n));
    for (int i = 0; i < n; i++) {
        char name[64], desc[256];
        int name_len = sizeof name, desc_len = sizeof desc, verbosity, bind, scope;
        MPI_Datatype found;
        MPI_T_enum enumeration;
        OK(MPI_T_cvar_get_info(i, name, &name_len, &verbosity, &found, &enumeration, desc,
                               &desc_len, &bind, &scope));
        CHECK(name_len == (int)strlen(name) + 1 && desc_len > 1);
        CHECK(enumeration == MPI_T_ENUM_NULL && bind == MPI_T_BIND_NO_OBJECT);
        OK(MPI_T_cvar_get_index(name, &at));
        CHECK(at == i);
        if (!strcmp(name, wanted)) {
            CHECK(found == type);
            return i;
        }
    }
    CHECK(!"no such variable");
    return -1;
}

static unsigned long level(MPI_T_pvar_session session, MPI_Comm comm, const char *name, int class) {
    int at, n;
    unsigned long value = 77;
    MPI_T_pvar_handle handle;
    OK(MPI_T_pvar_get_index(name, class, &at));
    OK(MPI_T_pvar_handle_alloc(session, at, &comm, &handle, &n));
    CHECK(n == 1);
    OK(MPI_T_pvar_read(session, handle, &value));
    FAILS(MPI_T_pvar_write(session, handle, &value), MPI_T_ERR_PVAR_NO_WRITE);
    FAILS(MPI_T_pvar_reset(session, handle), MPI_T_ERR_PVAR_NO_WRITE);
    FAILS(MPI_T_pvar_start(session, handle), MPI_T_ERR_PVAR_NO_STARTSTOP);
    OK(MPI_T_pvar_handle_free(session, &handle));
    CHECK(handle == MPI_T_PVAR_HANDLE_NULL);
    return value;
}

int main(int argc, char **argv) {
    int provided, n, at;
    unsigned long eager = 0;
    char text[2048];
    MPI_T_cvar_handle handle;
    FAILS(MPI_T_cvar_get_num(&n), MPI_T_ERR_NOT_INITIALIZED);
    OK(MPI_T_init_thread(MPI_THREAD_SINGLE, &provided));
    at = cvar_named("osier_eager_max_plain", MPI_UNSIGNED_LONG);
    OK(MPI_T_cvar_handle_alloc(at, NULL, &handle, &n));
    CHECK(n == 1);
    FAILS(MPI_T_cvar_read(handle, &eager), MPI_T_ERR_NOT_ACCESSIBLE);
    begin(&argc, &argv);
    OK(MPI_T_cvar_read(handle, &eager));
    CHECK(eager >= 256 && eager < 1 << 26);
    FAILS(MPI_T_cvar_write(handle, &eager), MPI_T_ERR_CVAR_SET_NEVER);
    OK(MPI_T_cvar_handle_free(&handle));
    CHECK(handle == MPI_T_CVAR_HANDLE_NULL);
    FAILS(MPI_T_cvar_read(handle, &eager), MPI_T_ERR_INVALID_HANDLE);
    at = cvar_named("OSIER_RANKS", MPI_CHAR);
    OK(MPI_T_cvar_handle_alloc(at, NULL, &handle, &n));
    CHECK(n > 1 && n <= (int)sizeof text);
    OK(MPI_T_cvar_read(handle, text));
    CHECK(atoi(text) == size);
    OK(MPI_T_cvar_handle_free(&handle));
    cvar_named("OSIER_DEBUG.pipeline", MPI_CHAR);
    FAILS(MPI_T_cvar_get_index("nothing", &n), MPI_T_ERR_INVALID_NAME);
    FAILS(MPI_T_cvar_handle_alloc(-1, NULL, &handle, &n), MPI_T_ERR_INVALID_INDEX);

    /* A name that is longer than the room for it. */
    int len = 4;
    OK(MPI_T_cvar_get_info(0, text, &len, NULL, NULL, NULL, NULL, NULL, NULL, NULL));
    CHECK(!strcmp(text, "osi") && len > 10);

    MPI_T_pvar_session session, other;
    MPI_Comm dup;
    MPI_Request request;
    int x = 0;
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &dup));
    OK(MPI_T_pvar_session_create(&session));
    OK(MPI_T_pvar_session_create(&other));
    CHECK(level(session, dup, "osier_posted_receives", MPI_T_PVAR_CLASS_LEVEL) == 0);
    OK(MPI_Irecv(&x, 1, MPI_INT, MPI_ANY_SOURCE, 5, dup, &request));
    CHECK(level(session, dup, "osier_posted_receives", MPI_T_PVAR_CLASS_LEVEL) == 1);
    CHECK(level(session, dup, "osier_operations", MPI_T_PVAR_CLASS_LEVEL) == 1);
    unsigned long moves = level(session, dup, "osier_moves", MPI_T_PVAR_CLASS_COUNTER);
    OK(MPI_Barrier(MPI_COMM_WORLD)); /* nobody's message comes before the look */
    OK(MPI_Send(&x, 1, MPI_INT, size - 1 - rank, 5, dup));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK(level(session, dup, "osier_posted_receives", MPI_T_PVAR_CLASS_LEVEL) == 0);
    CHECK(level(session, dup, "osier_moves", MPI_T_PVAR_CLASS_COUNTER) >= moves);
    MPI_T_pvar_handle bound;
    OK(MPI_T_pvar_handle_alloc(session, 0, &dup, &bound, &n));
    FAILS(MPI_T_pvar_read(other, bound, &eager), MPI_T_ERR_INVALID_HANDLE);
    OK(MPI_T_pvar_start(session, MPI_T_PVAR_ALL_HANDLES));
    OK(MPI_T_pvar_stop(session, MPI_T_PVAR_ALL_HANDLES));
    OK(MPI_T_pvar_session_free(&session));
    CHECK(session == MPI_T_PVAR_SESSION_NULL);
    FAILS(MPI_T_pvar_read(session, bound, &eager), MPI_T_ERR_INVALID_SESSION);
    OK(MPI_T_pvar_session_free(&other));
    OK(MPI_Comm_free(&dup));

    int cvars, pvars, kinds, listed[64];
    OK(MPI_T_category_get_num(&kinds));
    CHECK(kinds > 0);
    int all_c = 0, all_p = 0;
    for (int i = 0; i < kinds; i++) {
        len = sizeof text;
        OK(MPI_T_category_get_info(i, text, &len, NULL, NULL, &cvars, &pvars, &n));
        OK(MPI_T_category_get_index(text, &n));
        CHECK(n == i);
        OK(MPI_T_category_get_cvars(i, 64, listed));
        if (cvars > 0) CHECK(listed[0] == all_c);
        OK(MPI_T_category_get_pvars(i, 64, listed));
        all_c += cvars;
        all_p += pvars;
    }
    OK(MPI_T_cvar_get_num(&n));
    CHECK(all_c == n);
    OK(MPI_T_pvar_get_num(&n));
    CHECK(all_p == n);
    OK(MPI_T_event_get_num(&n));
    CHECK(n == 0);
    FAILS(MPI_T_enum_get_info(MPI_T_ENUM_NULL, &n, text, &len), MPI_T_ERR_INVALID_HANDLE);
    OK(MPI_T_finalize());
    FAILS(MPI_T_pvar_get_num(&n), MPI_T_ERR_NOT_INITIALIZED);
    return end();
}
