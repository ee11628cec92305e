/* Stands in for file systems that tests cannot mount: preloaded, it lets calls fail as theirs do.

   FAIL_FSYNC=TEXT   fsync of a file whose path holds TEXT says EDQUOT, as NFS does at the last moment
   FAIL_CLOSE=TEXT   so does close of a file that was written, after it is closed
   NO_FLOCK=1        flock says ENOSYS, as where locks are not supported */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int concerns(int fd, const char *variable) {
    char link[64], path[4096];
    const char *text = getenv(variable);
    if (text == NULL || *text == '\0') return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = '\0';
    return strstr(path, text) != NULL;
}

int fsync(int fd) {
    if (concerns(fd, "FAIL_FSYNC")) {
        errno = EDQUOT;
        return -1;
    }
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return real(fd);
}

int close(int fd) {
    int full = (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY && concerns(fd, "FAIL_CLOSE");
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "close");
    int result = real(fd);
    if (full) {
        errno = EDQUOT;
        return -1;
    }
    return result;
}

int flock(int fd, int operation) {
    if (getenv("NO_FLOCK") != NULL) {
        errno = ENOSYS;
        return -1;
    }
    int (*real)(int, int) = (int (*)(int, int))dlsym(RTLD_NEXT, "flock");
    return real(fd, operation);
}
