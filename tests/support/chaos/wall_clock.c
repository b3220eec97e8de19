/* Preloaded into a process: its wall clock is ahead of the machine's by the seconds in the file WALL_CLOCK_FILE (eight bytes,
   signed, in the machine's order), which may change at any time. Monotonic clocks stay as they are. The seconds in the file
   WALL_CLOCK_FILE_OF_SOME are added in processes with WALL_CLOCK_SOME in their command line, and in what these start.

   What waits until a moment of its wall clock waits as long as it meant to: librdkafka does so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *of_all_s, *of_some_s;

static const volatile int64_t *open_file(const char *variable) {
    const char *path = getenv(variable);
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return NULL;
    void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    return page == MAP_FAILED ? NULL : page;
}

static int is_one_of_some(void) {
    const char *some = getenv("WALL_CLOCK_SOME");
    if (some == NULL || getenv("WALL_CLOCK_IS_ONE") != NULL) return some != NULL;
    static char line[65536];
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, line, sizeof line);
    if (file >= 0) close(file);
    if (length <= 0 || memmem(line, (size_t)length, some, strlen(some)) == NULL) return 0;
    setenv("WALL_CLOCK_IS_ONE", "1", 1);
    return 1;
}

__attribute__((constructor)) static void open_files(void) {
    of_all_s = open_file("WALL_CLOCK_FILE");
    if (is_one_of_some()) of_some_s = open_file("WALL_CLOCK_FILE_OF_SOME");
}

static time_t ahead(void) {
    return (time_t)((of_all_s == NULL ? 0 : *of_all_s) + (of_some_s == NULL ? 0 : *of_some_s));
}

int clock_gettime(clockid_t clock, struct timespec *moment) {
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, moment);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) moment->tv_sec += ahead();
    return failed;
}

int gettimeofday(struct timeval *restrict moment, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "gettimeofday");
    int failed = real(moment, zone);
    if (!failed) moment->tv_sec += ahead();
    return failed;
}

time_t time(time_t *into) {
    struct timespec moment;
    clock_gettime(CLOCK_REALTIME, &moment);
    if (into != NULL) *into = moment.tv_sec;
    return moment.tv_sec;
}

int timespec_get(struct timespec *moment, int base) {
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, moment) == 0 ? base : 0;
}

/* The machine's moment for one of the process's wall clock; one of a monotonic clock, decades smaller, as it is. */
static struct timespec of_machine(const struct timespec *moment) {
    struct timespec found = *moment;
    if (found.tv_sec > 1000000000) found.tv_sec -= ahead();
    return found;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    /* There are two of that name on some machines, and the older takes other conditions. */
    if (real == NULL) *(void **)&real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec moment = of_machine(until);
    return real(condition, mutex, &moment);
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict until) {
    static int (*real)(cnd_t *, mtx_t *, const struct timespec *);
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "cnd_timedwait");
    struct timespec moment = of_machine(until);
    return real(condition, mutex, &moment);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    static int (*real)(sem_t *, const struct timespec *);
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec moment = of_machine(until);
    return real(semaphore, &moment);
}
