/* Tombolo's RDMA engine for programs in C.
 *
 * Made from crates/tombolo-c/src/lib.rs by `cargo xtask headers`; do not edit.
 *
 * The five steps of QOS 2.3.3.2 are tombolo_open, tombolo_allocate, a tombolo_spec,
 * tombolo_write or tombolo_read, and tombolo_poll or tombolo_wait. Sizes are in bytes.
 * tombolo_fetch_add and tombolo_compare_swap change a word of another domain, tombolo_send
 * and tombolo_receive pass small messages, tombolo_carry moves bytes between two others.
 * tombolo_post gives a queue any number of transfers, tombolo_poll_queue and tombolo_wait_any take
 * their ends; tombolo_post_list makes one transfer of several pieces at each end.
 * tombolo_invite and tombolo_join make several processes one domain.
 * tombolo_allocate_window makes memory that programs of the same machine map and use themselves.
 * Link with -ltombolo_c.
 */

#ifndef TOMBOLO_H
#define TOMBOLO_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 The longest message of a mailbox, in bytes.
 */
#define TOMBOLO_MAX_MAIL 1024

/*
 The outcome of a call. 0 is success.
 */
typedef enum tombolo_result {
  /*
   Done.
   */
  TOMBOLO_RESULT_OK = 0,
  /*
   A null pointer, a path with no end, or a number out of range.
   */
  TOMBOLO_RESULT_BAD_ARGUMENT = 1,
  /*
   No node answers at the path.
   */
  TOMBOLO_RESULT_NO_NODE = 2,
  /*
   The connection to the node broke: all transfers are lost, and the memory of the domain with them.
   */
  TOMBOLO_RESULT_NODE_GONE = 3,
  /*
   It took too long. A transfer goes on. Memory may still become registered: see `tombolo_register`.
   */
  TOMBOLO_RESULT_TIMED_OUT = 4,
  /*
   The node refused: the domain is taken, or there is not so much memory. Or own memory cannot be
   registered, or a copy of it hangs. Or this process has no file descriptor or no address space left
   for what the node passed. Or the node belongs to a user that is not trusted. Or this process is a child of the one that
   opened the domain, or the memory is another domain's.
   */
  TOMBOLO_RESULT_REFUSED = 5,
  /*
   All 32 channels of that direction are in use: release transfers that have ended.
   */
  TOMBOLO_RESULT_NO_CHANNEL = 6,
  /*
   The node has no room for more transfers now; nothing was done. Post it again.
   */
  TOMBOLO_RESULT_PAUSED = 7,
  /*
   The transfer ended with an error; tombolo_error says which.
   */
  TOMBOLO_RESULT_FAILED = 8,
} tombolo_result;

/*
 How far a transfer is (QOS Table 2.1).
 */
typedef enum tombolo_status {
  /*
   Completed successfully.
   */
  TOMBOLO_STATUS_FINISHED = 0,
  /*
   Under way.
   */
  TOMBOLO_STATUS_ONGOING = 1,
  /*
   Not begun: the node had no room for it.
   */
  TOMBOLO_STATUS_PAUSED = 2,
  /*
   Completed unsuccessfully.
   */
  TOMBOLO_STATUS_FINISHED_WITH_ERROR = 3,
} tombolo_status;

/*
 Who a grant is for.
 */
typedef enum tombolo_who {
  /*
   Any program of any node that this node is connected to.
   */
  TOMBOLO_WHO_ANYONE = 0,
  /*
   The program of a domain at the same node.
   */
  TOMBOLO_WHO_PROGRAM = 1,
  /*
   Any program at another node.
   */
  TOMBOLO_WHO_NODE = 2,
} tombolo_who;

/*
 What an order of a queue does.
 */
typedef enum tombolo_order_kind {
  /*
   As `tombolo_write`.
   */
  TOMBOLO_ORDER_KIND_WRITE = 0,
  /*
   As `tombolo_read`.
   */
  TOMBOLO_ORDER_KIND_READ = 1,
  /*
   As `tombolo_carry`, from `source`.
   */
  TOMBOLO_ORDER_KIND_CARRY = 2,
  /*
   As `tombolo_fetch_add`, to the word at the destination address of `spec`.
   */
  TOMBOLO_ORDER_KIND_FETCH_ADD = 3,
  /*
   As `tombolo_compare_swap`, of the word at the destination address of `spec`.
   */
  TOMBOLO_ORDER_KIND_COMPARE_SWAP = 4,
} tombolo_order_kind;

/*
 Which pages are brought in where one is absent.
 */
typedef enum tombolo_touch {
  /*
   All of the block that are absent, and more along a run of them.
   */
  TOMBOLO_TOUCH_ADAPTIVE = 0,
  /*
   Touch-a-page: the one that is absent.
   */
  TOMBOLO_TOUCH_PAGE = 1,
  /*
   Touch-ahead: `pages` of them, at most 64, from the one that is absent.
   */
  TOMBOLO_TOUCH_AHEAD = 2,
} tombolo_touch;

/*
 A protection domain. May be used by all threads.
 */
typedef struct tombolo_domain tombolo_domain;

/*
 The mailbox of a domain, to which messages come.
 */
typedef struct tombolo_mailbox tombolo_mailbox;

/*
 Memory that transfers reach.
 */
typedef struct tombolo_memory tombolo_memory;

/*
 A queue of transfers.
 */
typedef struct tombolo_queue tombolo_queue;

/*
 A transfer or an atomic operation under way, or over.
 */
typedef struct tombolo_transfer tombolo_transfer;

/*
 Memory of another domain, mapped into this program.
 */
typedef struct tombolo_window tombolo_window;

/*
 What another process needs to join a domain. A secret is in it.
 */
typedef struct tombolo_invitation {
  /*
   Opaque; read by `tombolo_join`.
   */
  uint8_t bytes[24];
} tombolo_invitation;

/*
 What others may do with memory.
 */
typedef struct tombolo_grant {
  /*
   A `tombolo_who`.
   */
  int32_t who;
  /*
   The domain or the node, by `who`.
   */
  uint32_t number;
  /*
   May read.
   */
  bool read;
  /*
   May write.
   */
  bool write;
} tombolo_grant;

/*
 The other side of a transfer.
 */
typedef struct tombolo_target {
  /*
   Which node; 0 is the program's own.
   */
  uint32_t node;
  /*
   Which domain there.
   */
  uint16_t domain;
} tombolo_target;

/*
 What is to be moved. All zero but the first three fields is the usual case.
 */
typedef struct tombolo_spec {
  /*
   Where the bytes are, in the domain they are in.
   */
  uint64_t source_address;
  /*
   Where they go.
   */
  uint64_t destination_address;
  /*
   How many bytes: up to 4 GiB - 1.
   */
  uint32_t size_bytes;
  /*
   0: class of service by what is left of the transfer; 1 high, 2 medium, 3 low.
   */
  uint32_t class_hint;
  /*
   Whether two words are written at the destination's side after the last byte, the first before
   the last.
   */
  bool notify;
  /*
   Where the words are written, in the destination's domain.
   */
  uint64_t notification_address;
  /*
   The first word.
   */
  uint64_t first;
  /*
   The last word, 8 bytes behind it.
   */
  uint64_t last;
} tombolo_spec;

/*
 Something for a queue to do.
 */
typedef struct tombolo_order {
  /*
   A `tombolo_order_kind`.
   */
  int32_t kind;
  /*
   It begins when all that was posted to its queue before it has ended.
   */
  bool fenced;
  /*
   The other side.
   */
  struct tombolo_target target;
  /*
   Of `CARRY`: where the bytes come from.
   */
  struct tombolo_target source;
  /*
   What is to be moved; of an atomic operation its destination address alone counts.
   */
  struct tombolo_spec spec;
  /*
   What is added, or put there.
   */
  uint64_t operand;
  /*
   What has to be there.
   */
  uint64_t compare;
  /*
   Comes back with the end.
   */
  uint64_t context;
} tombolo_order;

/*
 A piece of a domain's memory.
 */
typedef struct tombolo_piece {
  /*
   Where it begins.
   */
  uint64_t address;
  /*
   How many bytes.
   */
  uint32_t length;
} tombolo_piece;

/*
 One transfer between several pieces of memory at each end: the bytes of the sources, one after the other, fill the
 destinations, one after the other, wherever each piece ends.
 */
typedef struct tombolo_list {
  /*
   `WRITE`, `READ` or `CARRY`, a `tombolo_order_kind`.
   */
  int32_t kind;
  /*
   It begins when all that was posted to its queue before it has ended.
   */
  bool fenced;
  /*
   The other side.
   */
  struct tombolo_target target;
  /*
   Of `CARRY`: where the bytes come from.
   */
  struct tombolo_target source;
  /*
   Where the bytes are.
   */
  const struct tombolo_piece *sources;
  /*
   How many pieces: one at least.
   */
  size_t source_count;
  /*
   Where they go.
   */
  const struct tombolo_piece *destinations;
  /*
   How many pieces: one at least.
   */
  size_t destination_count;
  /*
   As in a `tombolo_spec`.
   */
  uint32_t class_hint;
  /*
   Whether two words are written at the destination's side when all bytes are there, the first before the last.
   */
  bool notify;
  /*
   Where the words are written, in the destination's domain.
   */
  uint64_t notification_address;
  /*
   The first word.
   */
  uint64_t first;
  /*
   The last word, 8 bytes behind it.
   */
  uint64_t last;
  /*
   Comes back with the end.
   */
  uint64_t context;
} tombolo_list;

/*
 The end of an order, or of a list.
 */
typedef struct tombolo_completion {
  /*
   As given when it was posted.
   */
  uint64_t context;
  /*
   Of an atomic operation: the word as it was before.
   */
  uint64_t before;
  /*
   How it ended: `OK`, `FAILED` or `NODE_GONE`.
   */
  enum tombolo_result result;
} tombolo_completion;

/*
 A handle of memory of a domain, for programs at any node. Its bytes may be passed on in whatever way.
 */
typedef struct tombolo_remote {
  /*
   Opaque; read by `tombolo_find`.
   */
  uint8_t bytes[40];
} tombolo_remote;

/*
 How absent pages of registered memory are dealt with. All zero is what `tombolo_register` does.
 */
typedef struct tombolo_faults {
  /*
   A `tombolo_touch`.
   */
  int32_t touch;
  /*
   How many pages ahead, for `TOMBOLO_TOUCH_AHEAD`.
   */
  uint16_t pages;
  /*
   The block is refused and comes again when its pages are there, in place of waiting with its bytes.
   */
  bool terminates;
} tombolo_faults;

/*
 The fault registers of a domain's process, named as those of FAULT 3.2.1.
 */
typedef struct tombolo_fault_registers {
  /*
   FSR.TF: a page was not present, nothing is mapped there, or its page cannot be had.
   */
  bool translation_fault;
  /*
   FSR.PF: an access was not permitted.
   */
  bool permission_fault;
  /*
   FSR.MULTI: there was another fault after the one that the others tell of.
   */
  bool multiple;
  /*
   FSYNR.WNR: by a write (at a destination), not a read (at a source).
   */
  bool write_not_read;
  /*
   FAR: where.
   */
  uint64_t address;
} tombolo_fault_registers;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Where the page begins that could not be reached, if this thread's last error was a transfer that failed so:
 of the other domain's memory, or of own memory, as `tombolo_error` says. False: there is none, and
 nothing is written.

 # Safety
 `page` can be written, or is null.
 */
bool tombolo_error_page(uint64_t *page);

/*
 The text of this thread's last error, until its next call. Never null.
 */
const char *tombolo_error(void);

/*
 Opens a domain at the node whose programs' socket is at `path`: of this number (1 to 32767), or
 of any (0). The node must run as this process's own user, or as root: otherwise `REFUSED`.

 # Safety
 `path` is a string, `domain` can be written.
 */
enum tombolo_result tombolo_open(const char *path, uint16_t number, struct tombolo_domain **domain);

/*
 As `tombolo_open`, at a node that may also run as the user of this id, who is trusted with all memory
 of this process.

 # Safety
 `path` is a string, `domain` can be written.
 */
enum tombolo_result tombolo_open_of_user(const char *path,
                                         uint16_t number,
                                         uint32_t user_id,
                                         struct tombolo_domain **domain);

/*
 Closes a domain. Its own memory that is registered still, or may be, is deregistered first: when this
 returns 0, no transfer touches it any more. Transfers, queues and mailboxes that are not released keep the rest of
 the domain open until they are. In a child made by fork it only releases the handle, and returns `REFUSED`: the domain is that of
 the process that opened it. The domain is not to be used any more whatever this returns;
 otherwise a transfer may still touch own memory until the last of them is released, and for
 `REFUSED` (a copy hangs, because nobody brings a page) until the page comes. Null is nothing.

 # Safety
 `domain` came from `tombolo_open` and is not used after this.
 */
enum tombolo_result tombolo_close(struct tombolo_domain *domain);

/*
 The domain's number; 0 for null.

 # Safety
 `domain` is null or open.
 */
uint16_t tombolo_number(const struct tombolo_domain *domain);

/*
 An invitation for other processes of this user, or of root, to join the domain. It is the same each time, and good as long as
 a process is in the domain. Every process that has the invitation can join, so pass it only to those that are to, by a pipe for
 example.

 # Safety
 `domain` is open, `invitation` can be written.
 */
enum tombolo_result tombolo_invite(const struct tombolo_domain *domain,
                                   struct tombolo_invitation *invitation);

/*
 Joins a domain of another process, at the node whose programs' socket is at `path`: at most 16 processes are in one. They
 are one protection domain: transfers of each reach all its memory, that from the node and each process's own, without grants.
 What a process has allocated or registered goes when it closes the domain; the domain goes with the last. Its own memory lies
 in the domain where `tombolo_own_address` says.

 # Safety
 `path` is a string, `invitation` is valid, `domain` can be written.
 */
enum tombolo_result tombolo_join(const char *path,
                                 const struct tombolo_invitation *invitation,
                                 struct tombolo_domain **domain);

/*
 As `tombolo_join`, at a node that may also run as the user of this id, who is trusted with all memory of this process.

 # Safety
 As for `tombolo_join`.
 */
enum tombolo_result tombolo_join_of_user(const char *path,
                                         const struct tombolo_invitation *invitation,
                                         uint32_t user_id,
                                         struct tombolo_domain **domain);

/*
 Where in the domain `at` is, in memory of this process that is registered: `at` itself in the process that has opened the
 domain, another address in one that has joined it. 0 if `domain` is null, or no process of a domain can register that.

 # Safety
 `domain` is null or open.
 */
uint64_t tombolo_own_address(const struct tombolo_domain *domain,
                             const void *at);

/*
 Allocates `bytes` of zeroed memory (whole pages of 4096); `grants` says what others may do with it.

 # Safety
 `domain` is open, `grants` has `grant_count` entries, `memory` can be written.
 */
enum tombolo_result tombolo_allocate(const struct tombolo_domain *domain,
                                     size_t bytes,
                                     const struct tombolo_grant *grants,
                                     size_t grant_count,
                                     struct tombolo_memory **memory);

/*
 Gives memory back: from now on no transfer reaches it, and its bytes are not mapped any more. The handle
 is released whatever this returns; after `TIMED_OUT` the node frees the memory when it goes on.

 # Safety
 `domain` is open, `memory` came from `tombolo_allocate` of it and is not used after this.
 */
enum tombolo_result tombolo_free(const struct tombolo_domain *domain,
                                 struct tombolo_memory *memory);

/*
 Where the memory is in this program; null for null. Others may change it, as far as its grants go.

 # Safety
 `memory` is null or allocated.
 */
void *tombolo_data(const struct tombolo_memory *memory);

/*
 Where the memory begins in the domain: for a `tombolo_spec`, and to tell others. 0 for null.

 # Safety
 `memory` is null or allocated.
 */
uint64_t tombolo_address(const struct tombolo_memory *memory);

/*
 Starts a write, from own memory to the target's. No system call while the node is awake.

 # Safety
 `domain` is open, `spec` is valid, `transfer` can be written.
 */
enum tombolo_result tombolo_write(const struct tombolo_domain *domain,
                                  struct tombolo_target target,
                                  const struct tombolo_spec *spec,
                                  struct tombolo_transfer **transfer);

/*
 Starts a read, from the target's memory to own.

 # Safety
 `domain` is open, `spec` is valid, `transfer` can be written.
 */
enum tombolo_result tombolo_read(const struct tombolo_domain *domain,
                                 struct tombolo_target target,
                                 const struct tombolo_spec *spec,
                                 struct tombolo_transfer **transfer);

/*
 Starts a transfer between two other domains, of any nodes; one may be own. The bytes go straight
 from the one to the other. The source must grant that this program (or, seen from another node, any
 program of this node) reads it; the destination, that it writes it.

 # Safety
 `domain` is open, `spec` is valid, `transfer` can be written.
 */
enum tombolo_result tombolo_carry(const struct tombolo_domain *domain,
                                  struct tombolo_target from,
                                  struct tombolo_target to,
                                  const struct tombolo_spec *spec,
                                  struct tombolo_transfer **transfer);

/*
 Starts adding to the word of 8 bytes at an address (a multiple of 8) of the target. It is carried out
 once, atomically with other such operations and with atomic instructions of the programs there;
 overflow wraps. The memory must be granted for reading and writing.

 # Safety
 `domain` is open, `transfer` can be written.
 */
enum tombolo_result tombolo_fetch_add(const struct tombolo_domain *domain,
                                      struct tombolo_target target,
                                      uint64_t address,
                                      uint64_t operand,
                                      struct tombolo_transfer **transfer);

/*
 As `tombolo_fetch_add`: puts `swap` there if `compare` is there.

 # Safety
 `domain` is open, `transfer` can be written.
 */
enum tombolo_result tombolo_compare_swap(const struct tombolo_domain *domain,
                                         struct tombolo_target target,
                                         uint64_t address,
                                         uint64_t compare,
                                         uint64_t swap,
                                         struct tombolo_transfer **transfer);

/*
 Waits, as `tombolo_wait`, for the end of an atomic operation, and says what the word was before.

 # Safety
 `transfer` is null or not released, `before` can be written.
 */
enum tombolo_result tombolo_wait_word(const struct tombolo_transfer *transfer,
                                      uint32_t milliseconds,
                                      uint64_t *before);

/*
 Opens the domain's mailbox (it has one at most), with room for this many messages that are not taken yet: a power
 of two, at most 4096. `senders` are grants of which only `who` and `number` count. If they include anyone and there is
 room for 1,024 or more, another node's waiting messages (those of all nodes with one key together) may not exceed the
 free places: make it twice as large as the largest burst of one sender.

 # Safety
 `domain` is open, `senders` has `sender_count` entries, `mailbox` can be written.
 */
enum tombolo_result tombolo_open_mailbox(const struct tombolo_domain *domain,
                                         uint32_t messages,
                                         const struct tombolo_grant *senders,
                                         size_t sender_count,
                                         struct tombolo_mailbox **mailbox);

/*
 Starts sending a message, of 1 to `TOMBOLO_MAX_MAIL` bytes, to the target's mailbox. While that is
 full the node tries again, for some seconds; then it is refused.

 # Safety
 `domain` is open, `message` has `bytes` bytes, `transfer` can be written.
 */
enum tombolo_result tombolo_send(const struct tombolo_domain *domain,
                                 struct tombolo_target target,
                                 const void *message,
                                 size_t bytes,
                                 struct tombolo_transfer **transfer);

/*
 Waits for the next message, at most this many milliseconds (0: does not wait), and copies it to `message`, which
 has room for `TOMBOLO_MAX_MAIL` bytes. Says how long it is and, unless null, who sent it.

 # Safety
 `mailbox` is null or open, `message` has that room, `bytes` can be written, `from` too or is null.
 */
enum tombolo_result tombolo_receive(const struct tombolo_mailbox *mailbox,
                                    uint32_t milliseconds,
                                    void *message,
                                    size_t *bytes,
                                    struct tombolo_target *from);

/*
 Releases the handle of a mailbox, which stays as long as its domain. Null is nothing.

 # Safety
 `mailbox` came from `tombolo_open_mailbox` and is not used after this.
 */
void tombolo_close_mailbox(struct tombolo_mailbox *mailbox);

/*
 How far a transfer is. No system call, but one some ten times a second that finds out whether the
 node is gone: then a transfer that has not ended is finished with error, and `tombolo_wait` says
 `NODE_GONE`. Null is finished with error.

 # Safety
 `transfer` is null or not released.
 */
enum tombolo_status tombolo_poll(const struct tombolo_transfer *transfer);

/*
 Waits for the end of a transfer, at most this many milliseconds: polls for a moment, then sleeps. It
 may be called again after `TIMED_OUT`.

 # Safety
 `transfer` is null or not released.
 */
enum tombolo_result tombolo_wait(const struct tombolo_transfer *transfer,
                                 uint32_t milliseconds);

/*
 Releases a transfer's handle; one that is on its way goes on. Null is nothing.

 # Safety
 `transfer` came from a function that starts one and is not used after this.
 */
void tombolo_release(struct tombolo_transfer *transfer);

/*
 Opens a queue for any number of transfers of a domain, of which `capacity` at most have an end that was not
 taken. One thread at a time may use it; each may have its own.

 # Safety
 `domain` is open, `queue` can be written.
 */
enum tombolo_result tombolo_open_queue(const struct tombolo_domain *domain,
                                       size_t capacity,
                                       struct tombolo_queue **queue);

/*
 Posts `count` orders. Those that can begin at once do so together; the others begin as channels become free, each
 direction in its order. `posted` becomes their number, unless it is null: fewer than `count` if the queue is full,
 which is `NO_CHANNEL`. If one of them makes no sense, none is posted.

 # Safety
 `queue` is open, `orders` has `count` entries, `posted` is null or can be written.
 */
enum tombolo_result tombolo_post(struct tombolo_queue *queue,
                                 const struct tombolo_order *orders,
                                 size_t count,
                                 size_t *posted);

/*
 Posts a list, which has one end. `NO_CHANNEL`: the queue is full. Its pieces are needed no more when this returns.

 # Safety
 `queue` is open, `list` is valid, and so are as many pieces as it says.
 */
enum tombolo_result tombolo_post_list(struct tombolo_queue *queue,
                                      const struct tombolo_list *list);

/*
 Takes up to `most` ends. Returns how many there were. If transfers among them have failed, `tombolo_error` says how the
 last of these did. No system call, unless the node sleeps and is to begin more.

 # Safety
 `queue` is null or open, `completions` has room for `most`.
 */
size_t tombolo_poll_queue(struct tombolo_queue *queue,
                          struct tombolo_completion *completions,
                          size_t most);

/*
 Waits for an end, at most this many milliseconds, and takes it: `OK`, and how it ended is in `completion`. If every end
 was taken already: `BAD_ARGUMENT`.

 # Safety
 `queue` is open, `completion` can be written.
 */
enum tombolo_result tombolo_wait_any(struct tombolo_queue *queue,
                                     struct tombolo_completion *completion,
                                     uint32_t milliseconds);

/*
 How many transfers of a queue have an end that was not taken; 0 for null.

 # Safety
 `queue` is null or open.
 */
size_t tombolo_queue_length(const struct tombolo_queue *queue);

/*
 Closes a queue: what has begun goes on, and what has not does not begin. Null is nothing.

 # Safety
 `queue` came from `tombolo_open_queue` and is not used after this.
 */
void tombolo_close_queue(struct tombolo_queue *queue);

/*
 A handle of memory of the domain, to be told to programs at any node: of what begins at `address` there
 (`tombolo_address`, or `tombolo_own_address` of memory that is registered), `length` bytes. It gives no rights: grants do.

 # Safety
 `domain` is open, `remote` can be written.
 */
enum tombolo_result tombolo_export(const struct tombolo_domain *domain,
                                   uint64_t address,
                                   uint64_t length,
                                   struct tombolo_remote *remote);

/*
 Whose memory a handle means, for transfers of this domain, where it begins there, and how long it is. `NO_NODE`: that
 node is not connected to this one now, or it was started again, and the memory is gone.

 # Safety
 `domain` is open, `remote` is valid, the others can be written.
 */
enum tombolo_result tombolo_find(const struct tombolo_domain *domain,
                                 const struct tombolo_remote *remote,
                                 struct tombolo_target *target,
                                 uint64_t *address,
                                 uint64_t *length);

/*
 Makes memory of this program memory of the domain, with grants as for `tombolo_allocate`: `start`
 itself is then its address in the domain, unless this process has joined it (`tombolo_own_address`). Its pages need not be there; transfers bring them in. What
 the program may not do there itself (`mprotect`), a transfer may not either; what is not mapped when
 a transfer comes fails it. It is registered until `tombolo_deregister` or `tombolo_close`.

 After `TIMED_OUT` and `NODE_GONE` the memory may be registered, or become so when the node goes on: use it
 for nothing else, and do not free it, before `tombolo_deregister` of `start` has returned 0, or
 `tombolo_close` has. After any other error it is not registered.

 # Safety
 `domain` is open, `grants` has `grant_count` entries. The memory stays what it is while it is
 registered: others write to whatever is there.
 */
enum tombolo_result tombolo_register(const struct tombolo_domain *domain,
                                     void *start,
                                     size_t bytes,
                                     const struct tombolo_grant *grants,
                                     size_t grant_count);

/*
 As `tombolo_register`, with a choice of how absent pages are dealt with; null is the default. To register all
 memory of the program, whatever is mapped there when, begin at 4096 and end at 2^47.

 # Safety
 As for `tombolo_register`; `faults` is valid or null.
 */
enum tombolo_result tombolo_register_with(const struct tombolo_domain *domain,
                                          void *start,
                                          size_t bytes,
                                          const struct tombolo_grant *grants,
                                          size_t grant_count,
                                          const struct tombolo_faults *faults);

/*
 Brings pages of registered memory in before a transfer needs them: `bytes` from `at` on, for being read, or
 also written. Returns at once; pages that cannot be had are left out. `PAUSED`: too much is waiting to be brought in
 already, or this process could not start threads for it. `at` need not be where the memory begins.

 # Safety
 `domain` is open.
 */
enum tombolo_result tombolo_prefetch(const struct tombolo_domain *domain,
                                     const void *at,
                                     size_t bytes,
                                     bool for_writing);

/*
 The fault registers of a domain, which are clear then: they tell of the first access to its registered memory whose page
 was absent, or that was not permitted, whoever made it.

 # Safety
 `domain` is open, `registers` can be written.
 */
enum tombolo_result tombolo_take_fault_registers(const struct tombolo_domain *domain,
                                                 struct tombolo_fault_registers *registers);

/*
 Takes own memory back: when this returns 0, no transfer touches it any more. Transfers that are
 under way end first, or fail. On any other result it stays registered, and this can be tried again:
 `REFUSED` within seconds if a copy of it hangs, because nobody brings a page. Then nothing new
 reaches it, but that copy may still touch it until the page comes. Also for memory whose registration
 failed with `TIMED_OUT` or `NODE_GONE`: 0 means that it is not registered, and will not be.

 # Safety
 `domain` is open.
 */
enum tombolo_result tombolo_deregister(const struct tombolo_domain *domain,
                                       void *start);

/*
 A descriptor for poll or epoll, of the domain and closed with it; -1 for null. It is readable when a
 transfer has ended after `tombolo_arm`, or the node is gone, and perhaps without either. So:
 `tombolo_arm`, look at the transfers (`tombolo_poll`), `epoll_wait`, `tombolo_drain`, and again.

 # Safety
 `domain` is null or open.
 */
int32_t tombolo_descriptor(const struct tombolo_domain *domain);

/*
 Asks for the descriptor to become readable when the next transfer ends. Look at the transfers after
 this and before waiting: one may have ended before. Null is nothing.

 # Safety
 `domain` is null or open.
 */
void tombolo_arm(const struct tombolo_domain *domain);

/*
 Makes the descriptor unreadable until the next armed end. `NODE_GONE` when the node is.

 # Safety
 `domain` is null or open.
 */
enum tombolo_result tombolo_drain(const struct tombolo_domain *domain);

/*
 As `tombolo_allocate`, memory that programs with a grant can also map (`tombolo_map_window`), at this node or at one
 with a link over shared memory. They may all read it, and all or none of them may write it. Memory for reading only can
 be written by nobody but this program.

 # Safety
 As for `tombolo_allocate`.
 */
enum tombolo_result tombolo_allocate_window(const struct tombolo_domain *domain,
                                            size_t bytes,
                                            const struct tombolo_grant *grants,
                                            size_t grant_count,
                                            struct tombolo_memory **memory);

/*
 Takes a window back: after `OK`, nobody else reaches the memory, and it is plain memory of the domain, with no grants, at the
 same addresses. All that this program has written is there, also what its threads write meanwhile; a system call that
 writes there may fail with `EFAULT`. Those who have it mapped are told by `tombolo_check_window`. No transfer of this
 program may reach it meanwhile. After an error others may reach it still, transfers may be refused, and this can be tried again.

 # Safety
 `domain` is open, `memory` came from `tombolo_allocate_window` of it.
 */
enum tombolo_result tombolo_revoke_window(const struct tombolo_domain *domain,
                                          const struct tombolo_memory *memory);

/*
 Maps a window of another domain, which begins there at `address`: what is loaded and stored here is loaded and stored
 there. It stays mapped until `tombolo_unmap_window`, whatever its owner does.

 # Safety
 `domain` is open, `window` can be written.
 */
enum tombolo_result tombolo_map_window(const struct tombolo_domain *domain,
                                       struct tombolo_target of,
                                       uint64_t address,
                                       struct tombolo_window **window);

/*
 Where the window is in this program; null for null. To write there is a fault if it is for reading only.

 # Safety
 `window` is null or mapped.
 */
void *tombolo_window_data(const struct tombolo_window *window);

/*
 How many bytes the window has; 0 for null.

 # Safety
 `window` is null or mapped.
 */
size_t tombolo_window_length(const struct tombolo_window *window);

/*
 Whether the window can be written.

 # Safety
 `window` is null or mapped.
 */
bool tombolo_window_is_writable(const struct tombolo_window *window);

/*
 `OK`: all that was loaded from the window before came from the owner's memory, and all that was stored before is there.
 `FAILED`: it was revoked or freed. No system call.

 # Safety
 `window` is mapped.
 */
enum tombolo_result tombolo_check_window(const struct tombolo_window *window);

/*
 Whether the node of the window's owner lives. If it was killed, `tombolo_check_window` keeps returning OK; this call finds
 out. A system call.

 # Safety
 `window` is null or mapped.
 */
bool tombolo_window_has_owner(const struct tombolo_window *window);

/*
 Unmaps a window. Null is nothing.

 # Safety
 `window` came from `tombolo_map_window` and is not used after this.
 */
void tombolo_unmap_window(struct tombolo_window *window);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TOMBOLO_H */
