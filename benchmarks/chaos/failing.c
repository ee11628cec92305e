/* Makes the Nth matching system call of a process fail, or its clock go wrong (LD_PRELOAD).
 *
 * CHAOS_CALL   open, read, write, close, fsync, rename, link, lock, unlink, mkdir, stat or list
 * CHAOS_UNDER  only files whose path contains this
 * CHAOS_NTH    which of the matching calls of a process fails first, from 1
 * CHAOS_TIMES  how many fail from there on
 * CHAOS_ERRNO  with which errno
 * CHAOS_TOLD   a file that is made when a call failed
 * CHAOS_CLOCK  seconds that the wall clock is ahead (negative: behind)
 * CHAOS_STEP   so many milliseconds after the process began (0: from the first)
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int strikes(const char *call, const char *path) {
    static __thread int inside;
    static long seen;
    const char *wanted = getenv("CHAOS_CALL"), *under = getenv("CHAOS_UNDER");
    if (inside || !wanted || !under || strcmp(wanted, call) || !path || !strstr(path, under))
        return 0;
    inside = 1;
    long nth = atol(getenv("CHAOS_NTH")), times = atol(getenv("CHAOS_TIMES"));
    long number = __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST);
    inside = 0;
    if (number < nth || number >= nth + times) return 0;
    if (getenv("CHAOS_TOLD"))
        syscall(SYS_close, syscall(SYS_openat, AT_FDCWD, getenv("CHAOS_TOLD"), O_CREAT, 0600));
    errno = atoi(getenv("CHAOS_ERRNO"));
    return 1;
}

static int strikes_fd(const char *call, int fd) {
    char link[64], path[PATH_MAX];
    if (!getenv("CHAOS_CALL") || strcmp(getenv("CHAOS_CALL"), call)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strikes(call, path);
}

#define OPEN(name)                                                        \
    int name(const char *path, int flags, ...) {                          \
        va_list more; va_start(more, flags);                              \
        mode_t mode = va_arg(more, mode_t); va_end(more);                 \
        return strikes("open", path) ? -1 : REAL(name)(path, flags, mode); \
    }
#define OPENAT(name)                                                      \
    int name(int folder, const char *path, int flags, ...) {              \
        va_list more; va_start(more, flags);                              \
        mode_t mode = va_arg(more, mode_t); va_end(more);                 \
        return strikes("open", path) ? -1 : REAL(name)(folder, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

ssize_t read(int fd, void *to, size_t n) {
    return strikes_fd("read", fd) ? -1 : REAL(read)(fd, to, n);
}
ssize_t write(int fd, const void *from, size_t n) {
    return strikes_fd("write", fd) ? -1 : REAL(write)(fd, from, n);
}
int fsync(int fd) { return strikes_fd("fsync", fd) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return strikes_fd("fsync", fd) ? -1 : REAL(fdatasync)(fd); }
int flock(int fd, int how) { return strikes_fd("lock", fd) ? -1 : REAL(flock)(fd, how); }
int rename(const char *from, const char *to) {
    return strikes("rename", to) ? -1 : REAL(rename)(from, to);
}
int link(const char *from, const char *to) {
    return strikes("link", to) ? -1 : REAL(link)(from, to);
}
int unlink(const char *path) { return strikes("unlink", path) ? -1 : REAL(unlink)(path); }

int mkdir(const char *path, mode_t mode) {
    return strikes("mkdir", path) ? -1 : REAL(mkdir)(path, mode);
}
DIR *opendir(const char *path) { return strikes("list", path) ? NULL : REAL(opendir)(path); }
int close(int fd) { /* as on NFS: the file is closed, and what was written is not there */
    int fails = strikes_fd("close", fd), error = errno, done = REAL(close)(fd);
    if (!fails) return done;
    errno = error;
    return -1;
}

#define STAT(name, record)                                                \
    int name(const char *path, struct record *to) {                       \
        return strikes("stat", path) ? -1 : REAL(name)(path, to);         \
    }
#define STATAT(name, record)                                              \
    int name(int folder, const char *path, struct record *to, int flags) { \
        return strikes("stat", path) ? -1 : REAL(name)(folder, path, to, flags); \
    }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)
STATAT(fstatat, stat)
STATAT(fstatat64, stat64)

static struct timespec began;
__attribute__((constructor)) static void begin(void) {
    REAL(clock_gettime)(CLOCK_MONOTONIC, &began);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int done = REAL(clock_gettime)(clock, now);
    const char *ahead = getenv("CHAOS_CLOCK"), *step = getenv("CHAOS_STEP");
    struct timespec passed;
    if (done || !ahead || clock != CLOCK_REALTIME) return done;
    REAL(clock_gettime)(CLOCK_MONOTONIC, &passed);
    long ms = (passed.tv_sec - began.tv_sec) * 1000 + (passed.tv_nsec - began.tv_nsec) / 1000000;
    if (!step || ms >= atol(step)) now->tv_sec += atol(ahead);
    return 0;
}
