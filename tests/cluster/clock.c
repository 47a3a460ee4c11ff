/* The time of day is AHEAD seconds later for a process that preloads this; its sleeps and deadlines are as they were.
   libfaketime moves those too, and under load turns a sleep whose end has passed into EINVAL. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*next)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int done = next(clock, now);
    if (done == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += AHEAD;
    return done;
}

int gettimeofday(struct timeval *now, void *zone) {
    int (*next)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int done = next(now, zone);
    if (done == 0) now->tv_sec += AHEAD;
    return done;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
