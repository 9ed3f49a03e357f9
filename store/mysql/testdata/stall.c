/* Keeps writes of InnoDB's log from the disk while a file exists, as a disk that hangs does. Makes FILE.held when it does. A library
   for LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static void stall(int fd) {
  char link[64], name[512];
  const char *while_exists = getenv("STALL_FILE");
  ssize_t n;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  n = readlink(link, name, sizeof name - 1);
  if (n < 0 || !while_exists) return;
  name[n] = 0;
  if (!strstr(name, "ib_logfile") && !strstr(name, "#ib_redo")) return; /* MariaDB, MySQL */
  if (access(while_exists, F_OK) != 0) return;
  snprintf(name, sizeof name, "%s.held", while_exists);
  close(creat(name, 0644));
  while (access(while_exists, F_OK) == 0) usleep(1000);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
  static ssize_t (*real)(int, const void *, size_t, off64_t);
  if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
  stall(fd);
  return real(fd, data, size, at);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
  static ssize_t (*real)(int, const void *, size_t, off_t);
  if (!real) real = dlsym(RTLD_NEXT, "pwrite");
  stall(fd);
  return real(fd, data, size, at);
}
