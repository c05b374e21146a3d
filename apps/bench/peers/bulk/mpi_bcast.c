// MPI_Bcast of a buffer that every rank has written before: what `squall-bench bulk` is held against.
//
// Usage: mpirun -np 4 mpi_bcast BYTES... Prints a JSON object for each size. The time of a round is the longest of any
// rank, from a barrier on; the figure is the median of ROUNDS (-DROUNDS=5 for slow networks).

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef ROUNDS
#define ROUNDS 20
#endif
enum { WARM_UP = 1 + ROUNDS / 10 };

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of_rounds(char *buffer, int bytes) {
    double times[ROUNDS];
    for (int round = -WARM_UP; round < ROUNDS; round++) {
        double slowest;
        MPI_Barrier(MPI_COMM_WORLD);
        double began = MPI_Wtime();
        MPI_Bcast(buffer, bytes, MPI_CHAR, 0, MPI_COMM_WORLD);
        double took = MPI_Wtime() - began;
        MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (round >= 0)
            times[round] = slowest;
    }
    qsort(times, ROUNDS, sizeof *times, by_value);
    return (times[(ROUNDS - 1) / 2] + times[ROUNDS / 2]) / 2;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 1; i < argc; i++) {
        long bytes = atol(argv[i]);
        char *buffer = bytes > 0 && bytes <= 1L << 30 ? malloc(bytes) : NULL;
        if (!buffer) {
            fprintf(stderr, "mpi_bcast: no buffer of %s bytes; take 1 to 2^30\n", argv[i]);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        memset(buffer, rank + 1, bytes);
        double seconds = median_of_rounds(buffer, bytes);
        if (buffer[0] != 1 || buffer[bytes - 1] != 1) {
            fprintf(stderr, "mpi_bcast: rank %d did not get the bytes\n", rank);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        if (rank == 0) {
            printf("{\"bench\":\"mpi_bcast\",\"nodes\":%d,\"size_bytes\":%ld,\"seconds_median\":%.9f}\n", ranks, bytes, seconds);
            fflush(stdout);
        }
        free(buffer);
    }
    MPI_Finalize();
}
