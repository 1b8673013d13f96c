/* Asks what may be asked before MPI_Init, which then may fail. */
#include "check.h"

int main(int argc, char **argv) {
    int flag, major, minor, length;
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    OK(MPI_Initialized(&flag)); CHECK(!flag);
    OK(MPI_Finalized(&flag)); CHECK(!flag);
    OK(MPI_Get_version(&major, &minor)); CHECK(major == 5 && minor == 0);
    OK(MPI_Get_library_version(text, &length)); CHECK((int)strlen(text) == length);
    printf("asked\n");
    fflush(stdout);
    begin(&argc, &argv);
    printf("rank %d of %d\n", rank, size);
    return end();
}
