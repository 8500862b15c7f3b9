/* Makes reads of some files fail: preloaded before a Python that the tests start.
 *
 * FAIL_READS names the end of a path, FAIL_ERRNO the error, FAIL_CALL where it comes: "stat", "open" or "read" (after
 * the file was opened). Source of the technique: fault injection by library interposition; nothing is copied. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int fails(const char *call, const char *path) {
    const char *wanted = getenv("FAIL_CALL"), *end = getenv("FAIL_READS");
    if (!wanted || !end || !path || strcmp(wanted, call)) return 0;
    size_t length = strlen(path), tail = strlen(end);
    if (length < tail || strcmp(path + length - tail, end)) return 0;
    errno = atoi(getenv("FAIL_ERRNO"));
    return 1;
}

static int fd_fails(int fd) {
    char link[64], path[PATH_MAX];
    if (!getenv("FAIL_READS")) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails("read", path);
}

#define OPEN(name)                                                                  \
    int name(const char *path, int flags, ...) {                                    \
        va_list rest;                                                               \
        va_start(rest, flags);                                                      \
        int mode = va_arg(rest, int);                                               \
        va_end(rest);                                                               \
        if (fails("open", path)) return -1;                                         \
        return ((int (*)(const char *, int, ...))REAL(name))(path, flags, mode);    \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                    \
    int name(int at, const char *path, int flags, ...) {                                \
        va_list rest;                                                                   \
        va_start(rest, flags);                                                          \
        int mode = va_arg(rest, int);                                                   \
        va_end(rest);                                                                   \
        if (fails("open", path)) return -1;                                             \
        return ((int (*)(int, const char *, int, ...))REAL(name))(at, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

ssize_t read(int fd, void *data, size_t size) { return fd_fails(fd) ? -1 : REAL(read)(fd, data, size); }
ssize_t pread(int fd, void *data, size_t size, off_t at) { return fd_fails(fd) ? -1 : REAL(pread)(fd, data, size, at); }
ssize_t pread64(int fd, void *data, size_t size, off64_t at) { return fd_fails(fd) ? -1 : REAL(pread64)(fd, data, size, at); }

int stat(const char *path, struct stat *found) { return fails("stat", path) ? -1 : REAL(stat)(path, found); }
int stat64(const char *path, struct stat64 *found) { return fails("stat", path) ? -1 : REAL(stat64)(path, found); }
int fstatat(int at, const char *path, struct stat *found, int flags) {
    return fails("stat", path) ? -1 : REAL(fstatat)(at, path, found, flags);
}
int fstatat64(int at, const char *path, struct stat64 *found, int flags) {
    return fails("stat", path) ? -1 : REAL(fstatat64)(at, path, found, flags);
}
