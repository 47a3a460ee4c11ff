/* The port guard of a run, preloaded into each of its processes (LD_PRELOAD); who may come in is compiled in.

   A TCP socket that listens gets a filter (SO_ATTACH_FILTER) which drops every packet of another source than the run's
   hosts: to a stranger its port is silent. Where the kernel refuses filters, a stranger is turned away by accept,
   before a byte is read. Of its own host, only the run's user and root come in, by TCP or a Unix socket; and a Unix
   socket that another user has put into a folder that all may write to is not talked to.

   The kernel knows the user of a connection while somebody holds its other end. NCCL connects, says its word and closes
   before it is accepted: so each process behind the guard writes down whom it calls on this host, and whose call it was
   is read there.

   OWN: this host's addresses, 16 bytes each, IPv4 as ::ffff:a.b.c.d. HOSTS: those of the run's hosts. CALLS: the file of
   the calls, a struct call of CALL_BYTES for each port. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define LISTENING 10 /* TCP_LISTEN of the kernel, as sock_diag has it */

static const unsigned char own[][16] = {OWN}, hosts[][16] = {HOSTS};

struct end { /* of a TCP connection */
    unsigned char address[16];
    in_port_t port;
};

struct call { /* from the port that is its place in the file */
    unsigned char from[16], to[16];
    in_port_t port;
};
_Static_assert(sizeof(struct call) == CALL_BYTES, "the file was made for another struct call");

static int admitted(uid_t user) { return user == 0 || user == geteuid(); }

static int is_internet(int family) { return family == AF_INET || family == AF_INET6; }

static int is_ipv4_address(const unsigned char *address) { return memcmp(address, "\0\0\0\0\0\0\0\0\0\0\377\377", 12) == 0; }

static int is_ipv4(const struct end *end) { return is_ipv4_address(end->address); }

static struct end end_of(const struct sockaddr_storage *name) {
    struct end end = {.address = {[10] = 0xff, [11] = 0xff}};
    if (name->ss_family == AF_INET) {
        memcpy(end.address + 12, &((const struct sockaddr_in *)name)->sin_addr, 4);
        end.port = ((const struct sockaddr_in *)name)->sin_port;
    } else {
        memcpy(end.address, &((const struct sockaddr_in6 *)name)->sin6_addr, 16);
        end.port = ((const struct sockaddr_in6 *)name)->sin6_port;
    }
    return end;
}

static int is_among(const struct end *end, const unsigned char (*addresses)[16], size_t count) {
    for (size_t i = 0; i < count; i++)
        if (memcmp(end->address, addresses[i], 16) == 0) return 1;
    return 0;
}

static int is_here(const struct end *end) {
    return (is_ipv4(end) && end->address[12] == 127) || is_among(end, own, sizeof own / sizeof *own);
}

/* The user of the socket at `from`, which is connected to `to`, asked of the kernel; -1 if nobody holds it any more. */
static uid_t user_of(const struct end *from, const struct end *to) {
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 body;
    } question = {.head = {.nlmsg_len = sizeof question, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST},
                  .body = {.sdiag_protocol = IPPROTO_TCP, .idiag_states = -1}};
    struct {
        struct nlmsghdr head;
        struct inet_diag_msg body;
        char more[1024];
    } answer;
    struct inet_diag_sockid *id = &question.body.id;
    int ipv4 = is_ipv4(from) && is_ipv4(to), asking = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (asking < 0) return -1;
    question.body.sdiag_family = ipv4 ? AF_INET : AF_INET6;
    memcpy(id->idiag_src, from->address + (ipv4 ? 12 : 0), ipv4 ? 4 : 16);
    memcpy(id->idiag_dst, to->address + (ipv4 ? 12 : 0), ipv4 ? 4 : 16);
    id->idiag_sport = from->port;
    id->idiag_dport = to->port;
    memset(id->idiag_cookie, 0xff, sizeof id->idiag_cookie); /* any */
    ssize_t got = send(asking, &question, sizeof question, 0) < 0 ? -1 : recv(asking, &answer, sizeof answer, 0);
    close(asking);
    if (got < (ssize_t)(sizeof answer.head + sizeof answer.body) || answer.head.nlmsg_type != SOCK_DIAG_BY_FAMILY) return -1;
    return answer.body.idiag_state == LISTENING || answer.body.idiag_inode == 0 ? (uid_t)-1 : answer.body.idiag_uid;
}

static struct call *call_from(const struct end *end) {
    static struct call *calls;
    if (!calls) {
        int fd = open(CALLS, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        void *mapped = fd < 0 ? MAP_FAILED : mmap(NULL, 65536 * sizeof *calls, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (fd >= 0) close(fd);
        if (mapped == MAP_FAILED) return NULL; /* the run's folder is gone: so is the run */
        calls = mapped;
    }
    return calls + ntohs(end->port);
}

static void write_down(int fd, const struct sockaddr *address, socklen_t length) {
    struct sockaddr_storage peer = {0}, self;
    socklen_t self_length = sizeof self, type_length = sizeof(int);
    int type = 0;
    memcpy(&peer, address, length);
    struct end to = end_of(&peer);
    if (!is_here(&to) || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_length) < 0 || type != SOCK_STREAM) return;
    if (getsockname(fd, (struct sockaddr *)&self, &self_length) < 0) return;
    struct end from = end_of(&self);
    struct call *call = call_from(&from);
    if (!call) return;
    memcpy(call->from, from.address, 16);
    memcpy(call->to, to.address, 16);
    call->port = to.port;
}

/* Whether the connection is a call that was written down; it is struck out: the next from this port is another. */
static int was_written_down(const struct end *from, const struct end *to) {
    struct call *call = call_from(from);
    if (!call || call->port != to->port || memcmp(call->from, from->address, 16) || memcmp(call->to, to->address, 16)) return 0;
    memset(call, 0, sizeof *call);
    return 1;
}

static int is_known(int fd) {
    struct sockaddr_storage peer, self;
    struct ucred user;
    socklen_t peer_length = sizeof peer, self_length = sizeof self, user_length = sizeof user;
    if (getsockname(fd, (struct sockaddr *)&self, &self_length) < 0) return 0;
    if (self.ss_family == AF_UNIX)
        return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &user_length) == 0 && admitted(user.uid);
    if (!is_internet(self.ss_family)) return 1;
    if (getpeername(fd, (struct sockaddr *)&peer, &peer_length) < 0) return 0;
    struct end from = end_of(&peer), to = end_of(&self);
    if (!is_here(&from)) return is_among(&from, hosts, sizeof hosts / sizeof *hosts);
    int ours = was_written_down(&from, &to);
    uid_t caller = user_of(&from, &to);
    return admitted(caller) || (caller == (uid_t)-1 && ours);
}

static uint32_t word_of(const unsigned char *address, int word) {
    uint32_t found;
    memcpy(&found, address + 4 * word, 4);
    return ntohl(found);
}

/* The filter that takes packets from the loopback and from these addresses, and drops all others: classic BPF, whose
   offsets count from the IP header. Returns how many instructions it has, at most 12 + 9 for each address. */
unsigned short aq_port_filter(struct sock_filter *to, const unsigned char (*addresses)[16], size_t count) {
    const uint32_t net = SKF_NET_OFF, ipv4_source = net + 12, ipv6_source = net + 8, all = 0xffffffff;
    const struct sock_filter take = BPF_STMT(BPF_RET | BPF_K, all), drop = BPF_STMT(BPF_RET | BPF_K, 0);
    const struct sock_filter load = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ipv4_source);
    unsigned short size = 0, jump;
    to[size++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_B | BPF_ABS, net);
    to[size++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xf0);
    to[size++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x40, 1, 0); /* IP's version */
    jump = size++;
    to[size++] = load;
    to[size++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xff000000);
    to[size++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x7f000000, 0, 1);
    to[size++] = take;
    to[size++] = load;
    for (size_t i = 0; i < count; i++)
        if (is_ipv4_address(addresses[i])) {
            to[size++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word_of(addresses[i], 3), 0, 1);
            to[size++] = take;
        }
    to[size++] = drop;
    to[jump] = (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, size - jump - 1);
    for (size_t i = 0; i < count; i++)
        if (!is_ipv4_address(addresses[i])) {
            for (int word = 0; word < 4; word++) { /* past the rest of this address where one differs */
                to[size++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ipv6_source + 4 * word);
                to[size++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word_of(addresses[i], word), 0, 7 - 2 * word);
            }
            to[size++] = take;
        }
    to[size++] = drop;
    return size;
}

int listen(int fd, int backlog) {
    int (*next)(int, int) = dlsym(RTLD_NEXT, "listen");
    struct sock_filter program[12 + 9 * (sizeof hosts / sizeof *hosts)];
    struct sock_fprog filter = {aq_port_filter(program, hosts, sizeof hosts / sizeof *hosts), program};
    int family = AF_UNSPEC;
    socklen_t length = sizeof family;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &length) == 0 && is_internet(family))
        setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter); /* refused: accept looks too */
    return next(fd, backlog);
}

/* A listener that blocks is told of an error of the connection: libzmq's would block here for ever. Both libzmq and NCCL
   try again after EPROTO, as accept's manual asks them to; NCCL gives up after ECONNABORTED. */
int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags) {
    int (*next)(int, struct sockaddr *, socklen_t *, int) = dlsym(RTLD_NEXT, "accept4");
    socklen_t room = length ? *length : 0;
    for (;;) {
        int taken = next(fd, address, length, flags);
        if (taken < 0 || is_known(taken)) return taken;
        close(taken);
        if (length) *length = room;
        if (fcntl(fd, F_GETFL) & O_NONBLOCK) continue;
        errno = EPROTO;
        return -1;
    }
}

int accept(int fd, struct sockaddr *address, socklen_t *length) { return accept4(fd, address, length, 0); }

int connect(int fd, const struct sockaddr *address, socklen_t length) {
    int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
    struct sockaddr_un name = {0};
    struct stat folder;
    if (address == NULL || length < sizeof address->sa_family) return next(fd, address, length);
    if (is_internet(address->sa_family) && length <= sizeof(struct sockaddr_storage)) {
        int done = next(fd, address, length), why = errno;
        if (done == 0 || why == EINPROGRESS) write_down(fd, address, length);
        errno = why;
        return done;
    }
    if (length > sizeof name || address->sa_family != AF_UNIX) return next(fd, address, length);
    memcpy(&name, address, length);
    char path[sizeof name.sun_path + 1] = {0}, *slash;
    memcpy(path, name.sun_path, sizeof name.sun_path);
    int done = next(fd, address, length);
    if (done < 0 || !(slash = strrchr(path, '/'))) return done;
    slash[slash == path] = '\0';
    if (stat(path, &folder) < 0 || !(folder.st_mode & S_IWOTH) || is_known(fd)) return done;
    shutdown(fd, SHUT_RDWR);
    errno = ECONNREFUSED;
    return -1;
}
