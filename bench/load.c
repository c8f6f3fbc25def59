/* Load for bench/accept.py: one POST after another on each of many kept connections.
 *
 *     cc -O2 -o load bench/load.c
 *     load PORT CONNECTIONS SECONDS ROUND HEADERS PATHS BODY
 *
 * HEADERS, PATHS and BODY are files: header lines, one path on each line, and a body in which the
 * run of 24 '#' is replaced by a mark that no other request of the run has: ROUND, the connection
 * and a number. Connection c uses the paths c, c + CONNECTIONS, ... in turn. After SECONDS each
 * connection still waits for its answer, so what was sent was answered. Prints one line of JSON:
 * how many were answered with 200 on each connection, how many otherwise, and how long that took.
 *
 * In C, with one thread and epoll, so that the client takes as little as possible of the machine
 * that the server runs on.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MARK 24
#define ANSWER (1 << 20)

struct connection {
    int fd;
    int number;
    long sent, accepted;
    double began;
    char *answer;
    size_t got;
};

static char *headers, *body, *mark_in_body;
static char **paths;
static long path_count;
static int connection_count, round_number;
static double *latencies;
static long answered, room, refused;

static void fail(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static char *content_of(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) fail(path);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *text = calloc(1, (size_t)size + 1);
    if (!text || fread(text, 1, (size_t)size, file) != (size_t)size) fail(path);
    fclose(file);
    return text;
}

static void read_paths(const char *path) {
    char *text = content_of(path);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        paths = realloc(paths, sizeof(char *) * (size_t)(path_count + 1));
        if (!paths) fail("realloc");
        paths[path_count++] = line;
    }
}

static void send_next(struct connection *c) {
    static char request[1 << 16];
    char mark[MARK + 1];
    snprintf(mark, sizeof mark, "r%03d-c%04d-n%012ld", round_number, c->number, c->sent);
    memcpy(mark_in_body, mark, MARK);
    long turns = path_count / connection_count;
    char *path = paths[c->number + connection_count * (c->sent % turns)];
    int size = snprintf(request, sizeof request, "POST %s HTTP/1.1\r\n%scontent-length: %zu\r\n\r\n%s",
                        path, headers, strlen(body), body);
    if (size < 0 || (size_t)size >= sizeof request) fail("the request is too large");
    c->sent++;
    c->got = 0;
    c->began = now();
    if (write(c->fd, request, (size_t)size) != size) fail("write");
}

/* 1: an answer is complete; 0: it is not yet. */
static int read_some(struct connection *c) {
    ssize_t got = read(c->fd, c->answer + c->got, ANSWER - 1 - c->got);
    if (got <= 0) fail("the server hung up");
    c->got += (size_t)got;
    c->answer[c->got] = 0;
    char *end = strstr(c->answer, "\r\n\r\n");
    if (!end) return 0;
    char *length = strcasestr(c->answer, "content-length:");
    if (!length || length > end) fail("an answer without content-length");
    return c->got >= (size_t)(end + 4 - c->answer) + (size_t)atol(length + 15);
}

static void note(struct connection *c) {
    if (answered == room) {
        room = room ? room * 2 : 1 << 16;
        latencies = realloc(latencies, sizeof(double) * (size_t)room);
        if (!latencies) fail("realloc");
    }
    latencies[answered++] = now() - c->began;
    if (!strncmp(c->answer, "HTTP/1.1 200", 12)) {
        c->accepted++;
    } else if (!refused++) {
        fprintf(stderr, "load: the first refusal:\n%.2000s\n", c->answer);
    }
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void tell(struct connection *all, double seconds) {
    qsort(latencies, (size_t)answered, sizeof(double), by_size);
    printf("{\"seconds\": %.6f, \"refused\": %ld, \"p50\": %.6f, \"p99\": %.6f, \"accepted\": [", seconds,
           refused, latencies[answered / 2], latencies[answered * 99 / 100]);
    for (int i = 0; i < connection_count; i++) printf("%s%ld", i ? ", " : "", all[i].accepted);
    printf("]}\n");
}

int main(int count, char **words) {
    if (count != 8) {
        fprintf(stderr, "usage: load PORT CONNECTIONS SECONDS ROUND HEADERS PATHS BODY\n");
        return 2;
    }
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(words[1]))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connection_count = atoi(words[2]);
    double seconds = atof(words[3]);
    round_number = atoi(words[4]);
    headers = content_of(words[5]);
    read_paths(words[6]);
    body = content_of(words[7]);
    mark_in_body = strstr(body, "########################");
    if (connection_count < 1 || path_count < connection_count || !mark_in_body) {
        fprintf(stderr, "load: too few paths, or no mark in the body\n");
        return 2;
    }
    int poll = epoll_create1(0), one = 1;
    struct connection *all = calloc((size_t)connection_count, sizeof *all);
    for (int i = 0; i < connection_count; i++) {
        struct connection *c = &all[i];
        c->number = i;
        c->answer = malloc(ANSWER);
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to)) fail("connect");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &event);
    }
    double began = now();
    int busy = connection_count;
    for (int i = 0; i < connection_count; i++) send_next(&all[i]);
    while (busy) {
        struct epoll_event events[256];
        int ready = epoll_wait(poll, events, 256, 30000);
        if (ready <= 0) fail("no answer for 30 seconds");
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (!read_some(c)) continue;
            note(c);
            if (now() - began < seconds) {
                send_next(c);
            } else {
                busy--;
            }
        }
    }
    tell(all, now() - began);
    return 0;
}
