/* What the allocator needs of this library, above all around a fork. It has no fork handlers of its own, and a child inherits what
 * other threads of its parent were in the middle of, while those threads do not exist there:
 *
 * - the list of abandoned segments, perhaps half changed: fork takes its lock first, and the child makes
 *   the locks anew, since one that is left belongs to nobody;
 * - a page that a thread was giving a block of back to is marked for that moment
 *   (MI_DELAYED_FREEING), and the end of its owner's thread waits for the end of that moment.
 *   The child takes the mark off. The block is lost, if it was not on a list yet.
 *
 * What other threads had claimed otherwise stays claimed: memory that the child does not use again. */
#include <mimalloc.h>
#include <mimalloc/internal.h>
#include <mimalloc/atomic.h>
#include <mimalloc/prim.h>

#include <errno.h>
#include <sched.h>
#include <sys/syscall.h>

/* Whether the process never had a second thread, or has none any more; an older C library does not say. */
extern char __libc_single_threaded __attribute__((weak));

/* In a signal handler that interrupted the holder of a lock, waiting for it would be for ever. The lock is
 * held for a few stores; a holder that has lost its processor gets it back in less than this many turns. */
enum { TRIES = 10000 };

/* The forks that this thread is in the middle of, one inside the other where a signal handler forks:
 * some bits for each. */
static _Thread_local uint64_t forks __attribute__((tls_model("initial-exec")));

uint64_t *tombolo_forks(void) { return &forks; }

/* The places of the requests to the supervisor that this thread is in the middle of, a bit for each. */
static _Thread_local uint64_t places __attribute__((tls_model("initial-exec")));

uint64_t *tombolo_places(void) { return &places; }

/* What all heaps share, also where this thread has none. */
static mi_subproc_t *shared(void) { return _mi_heap_main_get()->tld->segments.subproc; }

/* Takes the list's lock: whether that was possible. */
bool tombolo_heap_before_fork(void) {
  for (int tries = 0; tries < TRIES; tries++) {
    if (mi_lock_try_acquire(&shared()->abandoned_os_lock)) return true;
    sched_yield();
  }
  return false;
}

/* Releases it again. */
void tombolo_heap_after_fork(void) {
  mi_lock_release(&shared()->abandoned_os_lock);
}

/* What the allocator calls instead of libc's (see build.rs); a debugger that is told to call libc's does not meet it. It would give each
 * mapping a name, which nobody asks for, and by a call that a program may have forbidden itself. */
__attribute__((visibility("hidden"))) int __wrap_prctl(int option, ...) {
  (void)option;
  return -1;
}

/* The same. It would look for nodes of memory in /sys, and ask for each piece of its heap on which node it is wanted: nobody knows, since
 * pages come and go. So it finds one node, and does not ask. */
__attribute__((visibility("hidden"))) long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f) {
  if (number == SYS_access) {
    errno = ENOENT;
    return -1;
  }
  long result;
  register long fourth __asm__("r10") = d;
  register long fifth __asm__("r8") = e;
  register long sixth __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
                   : "rcx", "r11", "memory");
  if (result >= 0 || result < -4095) return result;
  errno = (int)-result;
  return -1;
}

/* Whether another thread may be in the middle of something. */
bool tombolo_has_threads(void) { return &__libc_single_threaded == NULL || !__libc_single_threaded; }

static void settle(mi_page_t *page) {
  mi_thread_free_t now = mi_atomic_load_relaxed(&page->xthread_free);
  while (mi_tf_delayed(now) == MI_DELAYED_FREEING &&
         !mi_atomic_cas_weak_release(&page->xthread_free, &now, mi_tf_set_delayed(now, MI_USE_DELAYED_FREE))) {
  }
}

/* In the child; `had_threads`: the parent had. */
void tombolo_heap_in_child(bool had_threads) {
  mi_lock_init(&shared()->abandoned_os_lock);
  mi_lock_init(&shared()->abandoned_os_visit_lock);
  mi_heap_t *own = mi_prim_get_default_heap();
  if (!had_threads || !mi_heap_is_initialized(own)) return;
  for (mi_heap_t *heap = own->tld->heaps; heap != NULL; heap = heap->next)
    for (size_t bin = 0; bin <= MI_BIN_FULL; bin++)
      for (mi_page_t *page = heap->pages[bin].first; page != NULL; page = page->next) settle(page);
}
