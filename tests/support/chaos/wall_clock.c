/* Preloaded into a process: its clocks are not the machine's, as files say that may change at any time.

   WALL_CLOCK_FILE          for every process
   WALL_CLOCK_FILE_OF_SOME  added to it in processes with WALL_CLOCK_SOME in their command line, and in what these start
   WALL_CLOCK_FILE_OF_ONE   added to it in processes with WALL_CLOCK_ONE in their command line, and not in what these start

   A file sets the wall clock ahead of the machine's, or behind it, at once. It can also make the process's time run fast or slow,
   as that of a bad oscillator does: then the monotonic clock runs at that rate, too. That one never steps.

   What waits until a moment of one of its clocks waits until that clock shows the moment. */
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

#define SECOND_NS 1000000000L
#define REAL(name) (*(void **)&real = real == NULL ? dlsym(RTLD_NEXT, name) : (void *)real)

/* `since_ns` is a moment of the machine's monotonic clock; from then on the clocks gain `drift` nanoseconds in each. */
struct setting { int64_t wall_ahead_ns, monotonic_ahead_ns, since_ns; double drift; };

/* The setting in force is the one whose number is `used`; the other is free to be written. */
struct clock_file { int64_t used; struct setting settings[2]; };

static const volatile struct clock_file *files[3];

static const volatile struct clock_file *open_file(const char *variable) {
    const char *path = getenv(variable);
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return NULL;
    void *page = mmap(NULL, sizeof(struct clock_file), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    return page == MAP_FAILED ? NULL : page;
}

static int is_in_command_line(const char *variable) {
    const char *wanted = getenv(variable);
    if (wanted == NULL) return 0;
    static char line[65536];
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, line, sizeof line);
    if (file >= 0) close(file);
    return length > 0 && memmem(line, (size_t)length, wanted, strlen(wanted)) != NULL;
}

static int is_one_of_some(void) {
    if (getenv("WALL_CLOCK_SOME") == NULL) return 0;
    if (getenv("WALL_CLOCK_IS_ONE_OF_SOME") != NULL) return 1;
    if (!is_in_command_line("WALL_CLOCK_SOME")) return 0;
    setenv("WALL_CLOCK_IS_ONE_OF_SOME", "1", 1);
    return 1;
}

__attribute__((constructor)) static void open_files(void) {
    files[0] = open_file("WALL_CLOCK_FILE");
    if (is_one_of_some()) files[1] = open_file("WALL_CLOCK_FILE_OF_SOME");
    if (is_in_command_line("WALL_CLOCK_ONE")) files[2] = open_file("WALL_CLOCK_FILE_OF_ONE");
}

static int machine_time(clockid_t clock, struct timespec *moment) {
    static int (*real)(clockid_t, struct timespec *);
    REAL("clock_gettime");
    return real(clock, moment);
}

static int is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

static int is_monotonic(clockid_t clock) {
    return clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_BOOTTIME;
}

/* By how much the process's clock is ahead of the machine's now, and what it gains in a nanosecond. */
static int64_t ahead_ns(clockid_t clock, double *drift) {
    struct timespec now;
    machine_time(CLOCK_MONOTONIC, &now);
    int64_t found_ns = 0;
    *drift = 0;
    for (int i = 0; i < 3; i++) {
        if (files[i] == NULL) continue;
        const volatile struct setting *it = &files[i]->settings[files[i]->used & 1];
        int64_t passed_ns = now.tv_sec * SECOND_NS + now.tv_nsec - it->since_ns;
        found_ns += is_wall(clock) ? it->wall_ahead_ns : it->monotonic_ahead_ns;
        found_ns += (int64_t)(it->drift * (double)passed_ns);
        *drift += it->drift;
    }
    return found_ns;
}

static void add(struct timespec *moment, int64_t by_ns) {
    int64_t nsec = moment->tv_nsec + by_ns % SECOND_NS;
    moment->tv_sec += by_ns / SECOND_NS + (nsec >= SECOND_NS) - (nsec < 0);
    moment->tv_nsec = nsec + (nsec < 0 ? SECOND_NS : nsec >= SECOND_NS ? -SECOND_NS : 0);
}

int clock_gettime(clockid_t clock, struct timespec *moment) {
    double drift;
    int failed = machine_time(clock, moment);
    if (!failed && (is_wall(clock) || is_monotonic(clock))) add(moment, ahead_ns(clock, &drift));
    return failed;
}

int gettimeofday(struct timeval *restrict moment, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    REAL("gettimeofday");
    struct timespec now;
    int failed = real(moment, zone) || clock_gettime(CLOCK_REALTIME, &now);
    if (!failed) *moment = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return failed ? -1 : 0;
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

/* The moment of the machine's clock at which the process's will show `moment`. */
static struct timespec of_machine(clockid_t clock, const struct timespec *moment) {
    struct timespec found = *moment, now;
    double drift;
    machine_time(clock, &now);
    int64_t ahead = ahead_ns(clock, &drift);
    add(&found, -ahead);
    if (drift == 0 || found.tv_sec < now.tv_sec) return found;
    /* What is left of the wait is more or less by the machine's clock. */
    long double left_ns = (long double)(found.tv_sec - now.tv_sec) * SECOND_NS + (found.tv_nsec - now.tv_nsec);
    long double real_ns = left_ns / (1 + (long double)drift);
    if (left_ns < 0 || real_ns > 1e18L) return found;
    add(&now, (int64_t)real_ns);
    return now;
}

/* Of a wait that doesn't say by which clock: a moment of a monotonic one is decades smaller. */
static clockid_t clock_of(const struct timespec *moment) {
    return moment->tv_sec > 1000000000 ? CLOCK_REALTIME : CLOCK_MONOTONIC;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    /* There are two of that name on some machines, and the older takes other conditions. */
    if (real == NULL) *(void **)&real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    REAL("pthread_cond_timedwait");
    struct timespec moment = of_machine(clock_of(until), until);
    return real(condition, mutex, &moment);
}

int pthread_cond_clockwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, clockid_t clock,
                           const struct timespec *restrict until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
    REAL("pthread_cond_clockwait");
    struct timespec moment = of_machine(clock, until);
    return real(condition, mutex, clock, &moment);
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict until) {
    static int (*real)(cnd_t *, mtx_t *, const struct timespec *);
    REAL("cnd_timedwait");
    struct timespec moment = of_machine(CLOCK_REALTIME, until);
    return real(condition, mutex, &moment);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    static int (*real)(sem_t *, const struct timespec *);
    REAL("sem_timedwait");
    struct timespec moment = of_machine(CLOCK_REALTIME, until);
    return real(semaphore, &moment);
}

int sem_clockwait(sem_t *restrict semaphore, clockid_t clock, const struct timespec *restrict until) {
    static int (*real)(sem_t *, clockid_t, const struct timespec *);
    REAL("sem_clockwait");
    struct timespec moment = of_machine(clock, until);
    return real(semaphore, clock, &moment);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
    static int (*real)(clockid_t, int, const struct timespec *, struct timespec *);
    REAL("clock_nanosleep");
    if (!(flags & TIMER_ABSTIME) || !(is_wall(clock) || is_monotonic(clock))) return real(clock, flags, until, left);
    struct timespec moment = of_machine(clock, until);
    return real(clock, flags, &moment, left);
}
