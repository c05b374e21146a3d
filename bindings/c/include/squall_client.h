/* The C interface of Squall's clients, libsquall_client. Made by .ci/header from bindings/c/src. */

/* A client calls a group of a cluster, and is no member of it: it talks to any member, and goes to another one when that
 * fails. All functions may be called from any thread. A result is to be freed with squall_result_free. */

#ifndef SQUALL_CLIENT_H
#define SQUALL_CLIENT_H

#include <stddef.h>
#include <stdint.h>

/*
 Bytes in JSON, which a group has by its service's `#[squall::service(json)]`.
 */
#define SQUALL_JSON 0

/*
 Bytes in rkyv's form, which all groups have, and which programs in Rust write.
 */
#define SQUALL_RKYV 1

/*
 A query whose answer shows all that any caller was told before it was asked.
 */
#define SQUALL_LINEARIZABLE 0

/*
 A query whose answer may be behind.
 */
#define SQUALL_LOCAL 1

/*
 The outcome of a call.
 */
typedef enum {
  /*
   It succeeded.
   */
  SQUALL_CODE_OK = 0,
  /*
   An argument can't be right: a null pointer, text that is no UTF-8, a shard that there is not.
   */
  SQUALL_CODE_ARGUMENT = 1,
  /*
   The configuration can't be used.
   */
  SQUALL_CODE_CONFIG = 2,
  /*
   As many calls wait as may.
   */
  SQUALL_CODE_FULL = 3,
  /*
   The group does not take the command: it is malformed, too long, or there is no room.
   */
  SQUALL_CODE_REJECTED = 4,
  /*
   The client's certificate does not permit the call, or the group does not have the codec.
   */
  SQUALL_CODE_DENIED = 5,
  /*
   The service has panicked with the command, and an operator of the group has said that it is skipped.
   */
  SQUALL_CODE_SKIPPED = 6,
  /*
   The command was applied, and its reply is too long to be kept for clients.
   */
  SQUALL_CODE_NO_REPLY = 7,
  /*
   The command was applied, and its reply could not be read.
   */
  SQUALL_CODE_REPLY = 8,
  /*
   The query was not answered.
   */
  SQUALL_CODE_QUERY = 9,
  /*
   The deadline has passed.
   */
  SQUALL_CODE_DEADLINE = 10,
  /*
   The group has ended the client's session.
   */
  SQUALL_CODE_SESSION_ENDED = 11,
  /*
   Nothing is known of the command.
   */
  SQUALL_CODE_UNKNOWN = 12,
  /*
   The client was closed.
   */
  SQUALL_CODE_CLOSED = 13,
  /*
   The system gave no thread, or something else that the client needs.
   */
  SQUALL_CODE_START = 14,
  /*
   The library has a fault: report it.
   */
  SQUALL_CODE_PANIC = 15,
} squall_code;

/*
 The knowledge of a call that failed: whether a command was applied.
 */
typedef enum {
  /*
   No member applies it, so it may be submitted again, unless it is skipped (SQUALL_CODE_SKIPPED).
   */
  SQUALL_APPLIED_NO = 0,
  /*
   It may have been applied, or may yet be.
   */
  SQUALL_APPLIED_MAYBE = 1,
  /*
   It was applied, once.
   */
  SQUALL_APPLIED_YES = 2,
} squall_applied;

/*
 The result of a call.
 */
typedef struct squall_result squall_result;

/*
 The number of an open client. 0 is none.

 Any threads may use a client at a time. The number of a client that was closed is refused with
 SQUALL_CODE_CLOSED, and one that none had with SQUALL_CODE_ARGUMENT. A process that forks after it has opened a
 client must not use it in the child.
 */
typedef uint64_t squall_client;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Opens a client of a group, as a configuration file describes its cluster: members' file will do, see "Programs in
 other languages" in the book.

 Waits until a member of the group has answered, for `timeout_ms` at most. The same time is then the limit of each
 call that has none of its own; 0 stands for 10 s. `codec` is SQUALL_JSON or SQUALL_RKYV. On success the client's
 number is in `*client`, else 0. The result is to be freed.

 # Safety

 `path` and `group` are null or end with a 0; `client` is null or has room for a number.
 */
squall_result *squall_open(const char *path,
                           const char *group,
                           uint32_t codec,
                           uint64_t timeout_ms,
                           squall_client *client);

/*
 Opens a client as squall_open does, with a configuration's text instead of a file. Paths of keys in it are relative
 to the working directory, and the environment does not override it.

 # Safety

 `toml` and `group` are null or end with a 0; `client` is null or has room for a number.
 */
squall_result *squall_open_toml(const char *toml,
                                const char *group,
                                uint32_t codec,
                                uint64_t timeout_ms,
                                squall_client *client);

/*
 Closes a client. Calls that other threads wait for end with SQUALL_CODE_CLOSED. Results that were not taken are
 freed, and the descriptor of squall_descriptor is closed: let the event loop forget it before.
 */
void squall_close(squall_client client);

/*
 Returns the number of the group's shards, which is 1 without shards; or 0 if the client is not open.
 */
uint32_t squall_shards(squall_client client);

/*
 Returns the shard that has a key, in a group that divides its keys by `squall::shard_of_bytes`. 0 if the client is
 not open, or the key is null.

 # Safety

 `key` is null or has `length` bytes.
 */
uint32_t squall_shard_of(squall_client client, const uint8_t *key, size_t length);

/*
 Submits a command to a shard, from 0 on, and waits for its reply. The result is to be freed.

 The command is applied at most once, whatever fails meanwhile. If the call fails, squall_result_applied says what is
 known. `timeout_ms` is its limit, or 0 for that of the client.

 # Safety

 `command` is null or has `length` bytes.
 */
squall_result *squall_submit(squall_client client,
                             uint32_t shard,
                             const uint8_t *command,
                             size_t length,
                             uint64_t timeout_ms);

/*
 Asks a shard a query, and waits for its answer. `how` is SQUALL_LINEARIZABLE or SQUALL_LOCAL. All else is as
 squall_submit says.

 # Safety

 `query` is null or has `length` bytes.
 */
squall_result *squall_query(squall_client client,
                            uint32_t shard,
                            uint32_t how,
                            const uint8_t *query,
                            size_t length,
                            uint64_t timeout_ms);

/*
 Starts a command, as squall_submit, and does not wait: its result comes with squall_next, and has this tag.

 Returns null if it was started, else the result that says why not, which is to be freed. Nothing was sent then.

 # Safety

 `command` is null or has `length` bytes.
 */
squall_result *squall_start_submit(squall_client client,
                                   uint32_t shard,
                                   const uint8_t *command,
                                   size_t length,
                                   uint64_t timeout_ms,
                                   uint64_t tag);

/*
 Starts a query, as squall_query, and does not wait: see squall_start_submit.

 # Safety

 `query` is null or has `length` bytes.
 */
squall_result *squall_start_query(squall_client client,
                                  uint32_t shard,
                                  uint32_t how,
                                  const uint8_t *query,
                                  size_t length,
                                  uint64_t timeout_ms,
                                  uint64_t tag);

/*
 Returns a descriptor that is ready for reading while calls that were started have results, for an event loop; or -1
 if the client is not open. It is only to be polled: squall_next resets it, and squall_close closes it.
 */
int squall_descriptor(squall_client client);

/*
 Takes the result of a call that was started and has ended. It is to be freed. Null if there is none now: call it
 until then, and poll the descriptor next.
 */
squall_result *squall_next(squall_client client);

/*
 Returns the outcome of a call. SQUALL_CODE_ARGUMENT if the result is null.

 # Safety

 It is null, or was not freed.
 */
squall_code squall_result_code(const squall_result *of);

/*
 Returns what is known of a command: whether it was applied.

 # Safety

 It is null, or was not freed.
 */
squall_applied squall_result_applied(const squall_result *of);

/*
 Returns the reply's or answer's bytes, which live until the result is freed. No 0 follows them.

 # Safety

 It is null, or was not freed.
 */
const uint8_t *squall_result_bytes(const squall_result *of);

/*
 Returns the number of the reply's or answer's bytes.

 # Safety

 It is null, or was not freed.
 */
size_t squall_result_length(const squall_result *of);

/*
 Returns a sentence that says why the call failed, in UTF-8, with a 0 at its end. It is empty if the call succeeded,
 and lives until the result is freed.

 # Safety

 It is null, or was not freed.
 */
const char *squall_result_message(const squall_result *of);

/*
 Returns the tag with which the call was started, or 0 if it was not.

 # Safety

 It is null, or was not freed.
 */
uint64_t squall_result_tag(const squall_result *of);

/*
 Frees a result. Null is none.

 # Safety

 It is null, or comes from this library and was not freed.
 */
void squall_result_free(squall_result *of);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SQUALL_CLIENT_H */
