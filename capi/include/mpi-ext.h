/* mpi-ext.h of Osier: what it has beside the standard, under the names that programs for Open MPI
 * and MPICH use: failures of ranks (ULFM), and what memory of devices may be passed. */
#ifndef OSIER_MPI_EXT_H
#define OSIER_MPI_EXT_H

#include <mpi.h>

#define OSIER_HAVE_MPI_EXT_FTMPI 1

/* Classes of errors. A rank that was needed has failed, or has left. A receive from any source
 * ends then, so none is ever pending. */
#define MPIX_ERR_PROC_FAILED MPI_ERR_PROC_ABORTED
#define MPIX_ERR_PROC_FAILED_PENDING 15873
/* A member has revoked the communicator. */
#define MPIX_ERR_REVOKED 15874

/* Whether buffers may lie in memory of devices: as the library is built, and whether there are
 * devices and a driver. */
#define MPIX_CUDA_AWARE_SUPPORT 1
#define MPIX_ROCM_AWARE_SUPPORT 0
#define MPIX_ZE_AWARE_SUPPORT 0

#ifdef __cplusplus
extern "C" {
#endif

int MPIX_Comm_revoke(MPI_Comm comm);
int MPIX_Comm_is_revoked(MPI_Comm comm, int *flag);
int MPIX_Comm_failure_ack(MPI_Comm comm);
int MPIX_Comm_failure_get_acked(MPI_Comm comm, MPI_Group *failed);
int MPIX_Comm_get_failed(MPI_Comm comm, MPI_Group *failed);
int MPIX_Comm_ack_failed(MPI_Comm comm, int num_to_ack, int *num_acked);
int MPIX_Comm_agree(MPI_Comm comm, int *flag);
int MPIX_Comm_iagree(MPI_Comm comm, int *flag, MPI_Request *request);
int MPIX_Comm_shrink(MPI_Comm comm, MPI_Comm *newcomm);
int MPIX_Comm_ishrink(MPI_Comm comm, MPI_Comm *newcomm, MPI_Request *request);

int PMPIX_Comm_revoke(MPI_Comm comm);
int PMPIX_Comm_is_revoked(MPI_Comm comm, int *flag);
int PMPIX_Comm_failure_ack(MPI_Comm comm);
int PMPIX_Comm_failure_get_acked(MPI_Comm comm, MPI_Group *failed);
int PMPIX_Comm_get_failed(MPI_Comm comm, MPI_Group *failed);
int PMPIX_Comm_ack_failed(MPI_Comm comm, int num_to_ack, int *num_acked);
int PMPIX_Comm_agree(MPI_Comm comm, int *flag);
int PMPIX_Comm_iagree(MPI_Comm comm, int *flag, MPI_Request *request);
int PMPIX_Comm_shrink(MPI_Comm comm, MPI_Comm *newcomm);
int PMPIX_Comm_ishrink(MPI_Comm comm, MPI_Comm *newcomm, MPI_Request *request);

int MPIX_Query_cuda_support(void);
int MPIX_Query_rocm_support(void);
int MPIX_Query_ze_support(void);

#ifdef __cplusplus
}
#endif

#endif
