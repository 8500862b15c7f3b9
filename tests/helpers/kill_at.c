/* Ends the process at its n-th file operation: preloaded before a Python that the tests start (placed_kills.py).
 *
 * Counted are calls that change what is on the disk below one folder: files opened for writing, writes, truncations,
 * renames, removals, folders made and removed. At the n-th one the process gets SIGKILL instead; of a write, half of the
 * bytes are written before. Source of the technique: fault injection by library interposition; nothing is copied. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static volatile long count, last;
static volatile int counting;

/* From now on: operations below `path`; the `n`-th kills, 0 for none. */
void kill_at(const char *path, long n) {
    strncpy(folder, path, sizeof folder - 1);
    count = 0;
    last = n;
    counting = 1;
}

long operations(void) { return count; }

static int reached(void) { return __sync_add_and_fetch(&count, 1) == last; }

static void end(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static int below(const char *path) { return counting && path && strstr(path, folder) == path; }

static int fd_below(int fd) {
    char link[64], path[PATH_MAX];
    if (!counting) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define STEP(condition) if ((condition) && reached()) end()

static int writes(int flags) { return flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC); }

#define OPEN(name)                                                                  \
    int name(const char *path, int flags, ...) {                                    \
        va_list rest;                                                               \
        va_start(rest, flags);                                                      \
        int mode = va_arg(rest, int);                                               \
        va_end(rest);                                                               \
        STEP(writes(flags) && below(path));                                         \
        return ((int (*)(const char *, int, ...))REAL(name))(path, flags, mode);    \
    }
OPEN(open)
OPEN(open64)

#define WRITE(name, ...)                                                            \
    if (fd_below(fd) && reached()) {                                                \
        if (size > 1) REAL(name)(fd, data, size / 2, ##__VA_ARGS__);                \
        end();                                                                      \
    }                                                                               \
    return REAL(name)(fd, data, size, ##__VA_ARGS__)

ssize_t write(int fd, const void *data, size_t size) { WRITE(write); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { WRITE(pwrite, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { WRITE(pwrite64, at); }

int ftruncate(int fd, off_t size) { STEP(fd_below(fd)); return REAL(ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { STEP(fd_below(fd)); return REAL(ftruncate64)(fd, size); }
int truncate(const char *path, off_t size) { STEP(below(path)); return REAL(truncate)(path, size); }
int rename(const char *from, const char *to) { STEP(below(to)); return REAL(rename)(from, to); }
int unlink(const char *path) { STEP(below(path)); return REAL(unlink)(path); }
int rmdir(const char *path) { STEP(below(path)); return REAL(rmdir)(path); }
int mkdir(const char *path, mode_t mode) { STEP(below(path)); return REAL(mkdir)(path, mode); }
int unlinkat(int at, const char *path, int flags) { STEP(counting && (below(path) || fd_below(at))); return REAL(unlinkat)(at, path, flags); }
