/* A client of the counters of examples/counter_service.rs: adds to some, and prints one.
 *
 *   cc -o counter counter.c -I ../include -L ../../../target/release -lsquall_client
 *   ./counter cluster.toml NAME AMOUNT..
 */

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "squall_client.h"

/* Ends the program if a call has failed. */
static void check(const char *what, squall_result *result) {
    if (squall_result_code(result) == SQUALL_CODE_OK)
        return;
    const char *known[] = {"nothing was applied", "it may have been applied", "it was applied"};
    fprintf(stderr, "%s: %s (%s)\n", what, squall_result_message(result), known[squall_result_applied(result)]);
    exit(1);
}

/* Takes the results of the calls that were started, and waits for them with poll, as an event loop does. */
static void take(squall_client client, int calls) {
    struct pollfd ready = {.fd = squall_descriptor(client), .events = POLLIN};
    while (calls > 0) {
        squall_result *result = squall_next(client);
        if (result == NULL) {
            poll(&ready, 1, -1);
            continue;
        }
        check("add", result);
        printf("call %" PRIu64 ": %.*s\n", squall_result_tag(result), (int)squall_result_length(result),
               (const char *)squall_result_bytes(result));
        squall_result_free(result);
        calls--;
    }
}

int main(int count, char **arguments) {
    if (count < 3) {
        fprintf(stderr, "usage: counter FILE NAME AMOUNT..\n");
        return 2;
    }
    /* Each reply is seen when it comes, through a pipe too. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *name = arguments[2];
    squall_client client;
    squall_result *opened = squall_open(arguments[1], "counters", SQUALL_JSON, 30000, &client);
    check("open", opened);
    squall_result_free(opened);
    /* Members divide names over the shards as this does. */
    uint32_t shard = squall_shard_of(client, (const uint8_t *)name, strlen(name));
    for (int i = 3; i < count; i++) {
        char command[500];
        int length = snprintf(command, sizeof command, "{\"add\": {\"name\": \"%s\", \"amount\": %s}}", name, arguments[i]);
        if (length < 0 || (size_t)length >= sizeof command) {
            fprintf(stderr, "NAME is too long\n");
            return 2;
        }
        squall_result *refused = squall_start_submit(client, shard, (const uint8_t *)command, (size_t)length, 0, i - 2);
        if (refused != NULL)
            check("start", refused);
    }
    take(client, count - 3);
    char query[500];
    snprintf(query, sizeof query, "{\"get\": {\"name\": \"%s\"}}", name);
    squall_result *answer = squall_query(client, shard, SQUALL_LINEARIZABLE, (const uint8_t *)query, strlen(query), 0);
    check("get", answer);
    printf("%.*s\n", (int)squall_result_length(answer), (const char *)squall_result_bytes(answer));
    squall_result_free(answer);
    squall_close(client);
    return 0;
}
