/* What C may get wrong is refused with a sentence, and nothing ends the program. */

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "squall_client.h"

static void refused(squall_result *result, squall_code code, const char *said) {
    assert(result != NULL);
    if (squall_result_code(result) != code || strstr(squall_result_message(result), said) == NULL) {
        fprintf(stderr, "%d: %s, and not %d: %s\n", squall_result_code(result), squall_result_message(result), code, said);
        assert(0);
    }
    assert(squall_result_applied(result) == SQUALL_APPLIED_NO);
    assert(squall_result_length(result) == 0);
    squall_result_free(result);
}

int main(int count, char **arguments) {
    assert(count == 2);
    const char *file = arguments[1];
    const uint8_t *get = (const uint8_t *)"{\"get\":{\"name\":\"a\"}}";
    const uint8_t *add = (const uint8_t *)"{\"add\":{\"name\":\"a\",\"amount\":\"b\"}}";
    squall_client client = 7;
    refused(squall_open(NULL, "counters", SQUALL_JSON, 0, &client), SQUALL_CODE_ARGUMENT, "null");
    refused(squall_open(file, NULL, SQUALL_JSON, 0, &client), SQUALL_CODE_ARGUMENT, "null");
    refused(squall_open(file, "counters", SQUALL_JSON, 0, NULL), SQUALL_CODE_ARGUMENT, "null");
    refused(squall_open(file, "counters", 9, 0, &client), SQUALL_CODE_ARGUMENT, "codec 9");
    refused(squall_open(file, "\xff", SQUALL_JSON, 0, &client), SQUALL_CODE_ARGUMENT, "UTF-8");
    refused(squall_open("/nowhere.toml", "counters", SQUALL_JSON, 0, &client), SQUALL_CODE_CONFIG, "/nowhere.toml");
    refused(squall_open_toml("cluster = 5", "counters", SQUALL_JSON, 0, &client), SQUALL_CODE_CONFIG, "cluster");
    refused(squall_open(file, "others", SQUALL_JSON, 300, &client), SQUALL_CODE_DEADLINE, "serves no group");
    assert(client == 0);
    refused(squall_submit(0, 0, add, 1, 0), SQUALL_CODE_ARGUMENT, "no client 0 was opened");
    assert(squall_shards(99) == 0 && squall_descriptor(99) == -1 && squall_next(99) == NULL);
    squall_close(99);
    squall_result_free(NULL);
    assert(squall_result_code(NULL) == SQUALL_CODE_ARGUMENT && squall_result_bytes(NULL) == NULL);
    assert(strlen(squall_result_message(NULL)) > 0);

    squall_result *opened = squall_open(file, "counters", SQUALL_JSON, 30000, &client);
    assert(squall_result_code(opened) == SQUALL_CODE_OK && *squall_result_message(opened) == 0);
    squall_result_free(opened);
    assert(squall_shards(client) == 2);
    refused(squall_submit(client, 2, add, 5, 0), SQUALL_CODE_ARGUMENT, "no shard 2");
    refused(squall_submit(client, 0, NULL, 5, 0), SQUALL_CODE_ARGUMENT, "null");
    refused(squall_submit(client, 0, add, SIZE_MAX, 0), SQUALL_CODE_ARGUMENT, "length");
    refused(squall_submit(client, 0, add, 0, 0), SQUALL_CODE_REJECTED, "EOF");
    refused(squall_submit(client, 0, add, strlen((const char *)add), 0), SQUALL_CODE_REJECTED, "expected i64");
    refused(squall_query(client, 0, 5, get, 5, 0), SQUALL_CODE_ARGUMENT, "consistency 5");
    refused(squall_query(client, 0, SQUALL_LOCAL, get, 5, 0), SQUALL_CODE_QUERY, "EOF");
    refused(squall_start_submit(client, 9, add, 5, 0, 1), SQUALL_CODE_ARGUMENT, "no shard 9");
    assert(squall_next(client) == NULL);
    int descriptor = squall_descriptor(client);
    assert(descriptor >= 0);
    squall_close(client);
    squall_close(client);
    refused(squall_query(client, 0, SQUALL_LOCAL, get, 5, 0), SQUALL_CODE_CLOSED, "was closed");
    printf("refused\n");
    return 0;
}
