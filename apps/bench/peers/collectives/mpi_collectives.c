// MPI's collective operations: what `squall-bench collectives` is held against.
//
// Usage: mpirun -np N mpi_collectives OPERATION BYTES [SAMPLES], all ranks on one host. Prints one JSON object.
//
// Both programs measure the same, which is:
//
//   call     One blocking operation of all ranks, the root being rank 0. Reductions sum doubles, and BYTES is the
//            vector of each rank, of which reduce-scatter leaves each a share of BYTES / N. Broadcast sends BYTES. For
//            gather, scatter, allgather and all-to-all BYTES is one block. What is sent and what is received are in
//            memory of their own, except in a broadcast, begin at a page each, and are the same in each call, untouched
//            in between.
//   check    Before all else, one call whose result each rank compares byte by byte; then the input stays as it is.
//   batch    K calls without a pause, after a barrier. Each rank reads the monotonic clock after that barrier and after
//            its last call. One call can take less time than a few looks at the clock, so that it isn't timed alone.
//   K        The first of 1, 2, 4, ... to 2^20 for which a batch takes 100 us, as the least of three batches: one in
//            which a rank had to wait for a processor doesn't count. Rank 0 decides and tells the others.
//   sample   The batch's time at the rank that took longest, divided by K. Ranks keep their times to the end, so that
//            nothing but a barrier is between batches.
//   warm-up  One tenth as many batches as samples, and one, after K is found.
//   figures  Over the samples (200 unless said): the median, of an even number the mean of the middle two; and p99, the
//            least of them that 99 % don't exceed. Each is a mean over K calls, so that p99 is of batches and not of
//            calls.
//
// Where K is over 1, operations with a root, which the root may leave early, overlap. The figure then says how many can
// be made in a time, and not how long a single one takes.

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef OPEN_MPI
#define FABRIC "openmpi"
#else
#define FABRIC "mpich"
#endif

enum { BATCH_NANOSECONDS = 100 * 1000, MAX_CALLS = 1 << 20, SAMPLES = 200, PAGE = 4096 };

static const long MAX_BYTES = 1L << 30;

static int rank, ranks;
static char *sent, *received;
// Of what one rank sends to another, in elements.
static int count;

static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }
static void broadcast(void) { MPI_Bcast(received, count, MPI_CHAR, 0, MPI_COMM_WORLD); }
static void reduce(void) { MPI_Reduce(sent, received, count, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD); }
static void allreduce(void) { MPI_Allreduce(sent, received, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD); }
static void gather(void) { MPI_Gather(sent, count, MPI_CHAR, received, count, MPI_CHAR, 0, MPI_COMM_WORLD); }
static void scatter(void) { MPI_Scatter(sent, count, MPI_CHAR, received, count, MPI_CHAR, 0, MPI_COMM_WORLD); }
static void allgather(void) { MPI_Allgather(sent, count, MPI_CHAR, received, count, MPI_CHAR, MPI_COMM_WORLD); }
static void reduce_scatter(void) {
    MPI_Reduce_scatter_block(sent, received, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}
static void all_to_all(void) { MPI_Alltoall(sent, count, MPI_CHAR, received, count, MPI_CHAR, MPI_COMM_WORLD); }

// How much a rank has, as the unit that BYTES counts.
enum extent { NOTHING, SHARE, WHOLE, WHOLE_FOR_EACH };

static const struct operation {
    const char *name;
    void (*call)(void);
    enum extent sends, receives;
    bool is_sum;
    // Whether the root alone has the input, or the result.
    bool from_root, to_root;
} operations[] = {
    {"barrier", barrier, NOTHING, NOTHING, false, false, false},
    {"broadcast", broadcast, WHOLE, WHOLE, false, true, false},
    {"reduce", reduce, WHOLE, WHOLE, true, false, true},
    {"allreduce", allreduce, WHOLE, WHOLE, true, false, false},
    {"gather", gather, WHOLE, WHOLE_FOR_EACH, false, false, true},
    {"scatter", scatter, WHOLE_FOR_EACH, WHOLE, false, true, false},
    {"allgather", allgather, WHOLE, WHOLE_FOR_EACH, false, false, false},
    {"reduce-scatter", reduce_scatter, WHOLE, SHARE, true, false, false},
    {"all-to-all", all_to_all, WHOLE_FOR_EACH, WHOLE_FOR_EACH, false, false, false},
};
enum { OPERATIONS = sizeof operations / sizeof *operations };

// All ranks have the same arguments and come here together; one speaks.
static void refuse(const char *why, const char *what) {
    if (rank == 0)
        fprintf(stderr, "mpi_collectives: %s%s\n", why, what);
    MPI_Finalize();
    exit(2);
}

static void *checked(void *memory) {
    if (!memory) {
        fprintf(stderr, "mpi_collectives: rank %d has no memory for its vectors: take fewer bytes\n", rank);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

static size_t extent_bytes(enum extent extent, size_t bytes) {
    switch (extent) {
    case NOTHING: return 0;
    case SHARE: return bytes / ranks;
    case WHOLE: return bytes;
    default: return bytes * ranks;
    }
}

static char *pages(size_t bytes) {
    size_t rounded = (bytes / PAGE + 1) * PAGE;
    return memset(checked(aligned_alloc(PAGE, rounded)), 0, rounded);
}

// What `of` sends: bytes and numbers that tell ranks and places apart, and sums that are exact.
static char byte_at(int of, size_t index) { return (char)(131 * of + 7 * index + index / 251 + 1); }
static double number_at(int of, size_t index) { return (double)(of + 1) * (double)(index % 1021 + 1); }

static void fill(const struct operation *operation, char *input, size_t bytes) {
    if (operation->is_sum)
        for (size_t i = 0; i < bytes / sizeof(double); i++)
            ((double *)input)[i] = number_at(rank, i);
    else
        for (size_t i = 0; i < bytes; i++)
            input[i] = byte_at(rank, i);
}

static bool is_right(const struct operation *operation, size_t sent_bytes, size_t received_bytes) {
    if (operation->is_sum) {
        size_t numbers = received_bytes / sizeof(double);
        size_t first = operation->receives == SHARE ? rank * numbers : 0;
        for (size_t i = 0; i < numbers; i++)
            // The sum over all ranks, since (of + 1) is the only factor that differs.
            if (((double *)received)[i] != number_at(0, first + i) * ranks * (ranks + 1) / 2)
                return false;
        return true;
    }
    size_t block = operation->receives == WHOLE_FOR_EACH ? received_bytes / ranks : received_bytes;
    size_t first = operation->sends == WHOLE_FOR_EACH ? rank * (sent_bytes / ranks) : 0;
    for (size_t i = 0; i < received_bytes; i++)
        if (received[i] != byte_at(operation->from_root ? 0 : (int)(i / block), first + i % block))
            return false;
    return true;
}

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// Ranks of one host have one clock: the last must have come before the first goes, although they come one after
// another.
static bool barrier_holds(void) {
    nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000L * rank}, NULL);
    long long last_came, first_went, came = now_ns();
    MPI_Barrier(MPI_COMM_WORLD);
    long long went = now_ns();
    MPI_Allreduce(&came, &last_came, 1, MPI_LONG_LONG, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(&went, &first_went, 1, MPI_LONG_LONG, MPI_MIN, MPI_COMM_WORLD);
    return last_came <= first_went;
}

static void prepare(const struct operation *operation, size_t bytes) {
    size_t sent_bytes = extent_bytes(operation->sends, bytes), received_bytes = extent_bytes(operation->receives, bytes);
    received = pages(received_bytes);
    sent = operation->call == broadcast ? received : pages(sent_bytes);
    if (!operation->from_root || rank == 0)
        fill(operation, sent, sent_bytes);
    operation->call();
    bool has_result = !operation->to_root || rank == 0;
    bool right = operation->call == barrier ? barrier_holds() : !has_result || is_right(operation, sent_bytes, received_bytes);
    if (!right) {
        fprintf(stderr, "mpi_collectives: rank %d has a wrong result of %s\n", rank, operation->name);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static double batch_us(const struct operation *operation, int calls) {
    MPI_Barrier(MPI_COMM_WORLD);
    long long began = now_ns();
    for (int i = 0; i < calls; i++)
        operation->call();
    return (double)(now_ns() - began) / 1e3;
}

static int calls_of_batch(const struct operation *operation) {
    for (int calls = 1;; calls *= 2) {
        double least = 0, slowest;
        for (int batch = 0; batch < 3; batch++) {
            double took = batch_us(operation, calls);
            MPI_Reduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
            least = batch == 0 || slowest < least ? slowest : least;
        }
        int enough = least * 1e3 >= BATCH_NANOSECONDS || calls == MAX_CALLS;
        MPI_Bcast(&enough, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (enough)
            return calls;
    }
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    if (argc < 3 || argc > 4)
        refuse("usage: mpi_collectives OPERATION BYTES [SAMPLES]", "");
    const struct operation *operation = NULL;
    for (int i = 0; i < OPERATIONS; i++)
        if (strcmp(operations[i].name, argv[1]) == 0)
            operation = &operations[i];
    if (!operation)
        refuse("no such operation: ", argv[1]);
    // A barrier has no bytes, whatever is said.
    long bytes = operation->call == barrier ? 0 : atol(argv[2]);
    if (operation->call != barrier && (bytes < 1 || bytes > MAX_BYTES))
        refuse("give 1 to 2^30 bytes, and not ", argv[2]);
    if (operation->is_sum && bytes % sizeof(double))
        refuse("doubles are summed: give a multiple of 8 bytes, and not ", argv[2]);
    if (operation->receives == SHARE && bytes % (sizeof(double) * ranks))
        refuse("each rank gets a share of doubles: give a multiple of 8 bytes for each rank, and not ", argv[2]);
    int samples = argc > 3 ? atoi(argv[3]) : SAMPLES;
    if (samples < 1)
        refuse("give at least one sample, and not ", argv[3]);

    count = (int)(operation->is_sum ? extent_bytes(operation->receives, bytes) / sizeof(double) : (size_t)bytes);
    prepare(operation, bytes);

    double *mine = checked(malloc(samples * sizeof *mine)), *slowest = checked(malloc(samples * sizeof *slowest));
    int calls = calls_of_batch(operation);
    for (int batch = -1 - samples / 10; batch < samples; batch++) {
        double took = batch_us(operation, calls);
        if (batch >= 0)
            mine[batch] = took / calls;
    }
    MPI_Reduce(mine, slowest, samples, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        qsort(slowest, samples, sizeof *slowest, by_value);
        printf("{\"bench\":\"collectives\",\"fabric\":\"" FABRIC "\",\"nodes\":%d,\"operation\":\"%s\",\"size_bytes\":%ld,"
               "\"algorithm\":\"mpi\",\"microseconds_median\":%.4f,\"microseconds_p99\":%.4f}\n",
               ranks, operation->name, bytes, (slowest[(samples - 1) / 2] + slowest[samples / 2]) / 2,
               slowest[(99L * samples + 99) / 100 - 1]);
    }
    MPI_Finalize();
}
