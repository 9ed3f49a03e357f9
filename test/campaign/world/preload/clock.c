// clock is loaded before a database server, and sets its time of day ahead by what CLOCK_FILE says: nanoseconds, 8 bytes.
//
// It allocates no memory and takes no lock, because PostgreSQL asks for the time in signal handlers too.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static const int64_t none; // until the file is mapped: other libraries ask for the time while they begin
static const int64_t *ahead = &none;

__attribute__((constructor)) static void map(void) {
	const char *name = getenv("CLOCK_FILE");
	int fd = open(name ? name : "", O_RDONLY | O_CLOEXEC);
	void *mapped = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, fd, 0);
	if (mapped == MAP_FAILED) {
		perror("clock: CLOCK_FILE");
		_exit(1);
	}
	close(fd);
	ahead = mapped;
}

static struct timespec plus(struct timespec t, int64_t nanoseconds) {
	int64_t all = t.tv_sec * SECOND + t.tv_nsec + nanoseconds;
	return (struct timespec){all / SECOND, all % SECOND};
}

static int64_t now_ahead(void) { return __atomic_load_n(ahead, __ATOMIC_RELAXED); }

int clock_gettime(clockid_t id, struct timespec *t) {
	int result = syscall(SYS_clock_gettime, id, t);
	if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		*t = plus(*t, now_ahead());
	return result;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
	struct timespec now;
	(void)zone; // obsolete, and nobody asks for it
	clock_gettime(CLOCK_REALTIME, &now);
	*t = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
	return 0;
}

time_t time(time_t *t) {
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (t)
		*t = now.tv_sec;
	return now.tv_sec;
}

// A deadline is a time of day, or a time since the machine's start if the condition was made so. The latter is far below 31 years.
int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, const struct timespec *restrict deadline) {
	if (deadline->tv_sec < SECOND)
		return pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, deadline);
	struct timespec real = plus(*deadline, -now_ahead());
	return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, &real);
}
