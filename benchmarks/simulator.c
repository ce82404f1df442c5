/* Rules 1 to 11 of the simulator (src/loadmaster/simulator/rules.py) in C, for plans that fuse nothing on clusters
   without a host: what benchmarks/simulator.py --c compares the compiled loop with. Records instead of columns, so that
   what is read together lies together. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t i32;
typedef int64_t i64;
enum { MADE, FIXED, UPDATED };

typedef struct { /* what Python gives: the columns of a Layout */
    i64 ops, tensors, devices, channels, classes, most_sends, packed, heap_entries;
    const i64 *op_ns, *workspace, *nbytes, *send_ns, *heap_start;
    const i32 *tie, *op_of_tie, *waits, *make_start, *makes, *read_start, *reads, *next_start, *nexts, *reader_start,
        *readers, *maker, *base, *send_class, *channel;
    const int8_t *origin, *stays;
} Given;

typedef struct { i32 left, place, rank, tie; } Op;            /* of one run */
typedef struct { i32 make, read, next; i64 workspace; } Row;  /* where the lists of an op begin */
typedef struct { i64 nbytes; i32 reader, base, maker; int8_t origin, stays; } Tensor;
typedef struct { i64 *keys; i32 size, dirty; i64 busy; } Queue;
typedef struct { i64 ns, at; } Event;
typedef struct { i64 key; i32 at; } Coming;

typedef struct {
    const Given *given;
    i64 devices;
    Op *op;
    Row *row;
    Tensor *tensor;
    i32 *hold; /* [tensors * devices] uses that are left; written when a tensor is made */
    Queue *queue;
    i64 *keys, *room;
    Event *event;
    Coming *coming;
    i32 comings, events, dirties, *dirty, *seen;
    i64 *memory, *peak, *low, now;
} Run;

static void *block(i64 count, size_t size) { return malloc((size_t)(count > 0 ? count : 1) * size); }

static Run *make_run(const Given *g) {
    Run *r = calloc(1, sizeof *r);
    i64 resources = g->devices + g->channels;
    r->given = g, r->devices = g->devices;
    r->op = block(g->ops, sizeof(Op)), r->row = block(g->ops + 1, sizeof(Row));
    r->tensor = block(g->tensors + 1, sizeof(Tensor)), r->hold = block(g->tensors * g->devices, sizeof(i32));
    r->queue = block(resources, sizeof(Queue)), r->keys = block(g->heap_entries, sizeof(i64));
    r->room = block(resources, sizeof(i64)), r->event = block(resources + 1, sizeof(Event));
    r->coming = block(g->ops + g->most_sends, sizeof(Coming));
    r->dirty = block(resources, sizeof(i32)), r->seen = block(g->devices, sizeof(i32));
    r->memory = block(g->devices, sizeof(i64)), r->low = block(g->devices, sizeof(i64));
    for (i64 op = 0; op <= g->ops; op++)
        r->row[op] = (Row){g->make_start[op], g->read_start[op], g->next_start[op], op < g->ops ? g->workspace[op] : 0};
    for (i64 t = 0; t <= g->tensors; t++) {
        r->tensor[t].reader = g->reader_start[t];
        if (t < g->tensors)
            r->tensor[t] = (Tensor){g->nbytes[t], g->reader_start[t], g->base[t], g->maker[t], g->origin[t], g->stays[t]};
    }
    return r;
}

static void free_run(Run *r) {
    void *blocks[] = {r->op, r->row, r->tensor, r->hold, r->queue, r->keys, r->room, r->event, r->coming, r->dirty,
                      r->seen, r->memory, r->low, r};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) free(blocks[i]);
}

static inline void wake(Run *r, i32 op) {
    Op *o = &r->op[op];
    if (--o->left == 0) r->coming[r->comings++] = (Coming){((i64)o->rank << 32) | o->tie, o->place};
}

static inline void let_go(Run *r, i64 tensor, i64 device) {
    for (;;) {
        Tensor *t = &r->tensor[tensor];
        if (--r->hold[tensor * r->devices + device] > 0) return;
        if (t->base < 0 || r->op[t->maker].place != device) {
            r->memory[device] -= t->nbytes;
            return;
        }
        tensor = t->base;
        if (r->tensor[tensor].origin != MADE) return;
    }
}

/* Who needs the tensor where: readers here wake up, sends are queued. */
static inline void announce(Run *r, i64 tensor, i64 device, int made) {
    const Given *g = r->given;
    Tensor *t = &r->tensor[tensor];
    i32 *uses = r->hold + tensor * r->devices, local = 0, fars = 0, *seen = r->seen;
    for (i32 at = t->reader; at < t[1].reader; at++) {
        i32 reader = g->readers[at], where = r->op[reader].place;
        if (where == device) {
            local++;
            if (made) wake(r, reader);
            continue;
        }
        i32 far = 0;
        while (far < fars && seen[far] != where) far++;
        if (far == fars) seen[fars++] = where, uses[where] = 0, r->low[where] = INT64_MAX;
        uses[where]++;
        if (r->op[reader].rank < r->low[where]) r->low[where] = r->op[reader].rank;
        if (!made) r->op[reader].left++;
    }
    for (i32 far = 0; far < fars; far++) {
        i64 where = seen[far], slot = tensor * r->devices + where;
        r->coming[r->comings++] = (Coming){(r->low[where] << 32) | slot, g->channel[device * r->devices + where]};
    }
    uses[device] = local + fars + t->stays;
}

/* Queues where any placement finds room; if that is too much, side by side with room for what this one makes wait. */
static void lay_queues(Run *r) {
    const Given *g = r->given;
    i64 resources = g->devices + g->channels, total = 0;
    for (i64 at = 0; at < resources; at++) r->queue[at] = (Queue){r->keys + g->heap_start[at], 0, 0, -1};
    if (!g->packed) return;
    memset(r->room, 0, (size_t)resources * sizeof(i64));
    for (i64 op = 0; op < g->ops; op++) r->room[r->op[op].place]++;
    for (i64 d = 0; d < g->devices; d++) r->seen[d] = -1;
    for (i64 t = 0; t < g->tensors; t++) {
        if (r->tensor[t].origin == FIXED) continue;
        for (i32 at = r->tensor[t].reader; at < r->tensor[t + 1].reader; at++) {
            i32 home = r->op[r->tensor[t].maker].place, where = r->op[g->readers[at]].place;
            if (where == home || r->seen[where] == t) continue;
            r->seen[where] = (i32)t, r->room[g->channel[home * g->devices + where]]++;
        }
    }
    for (i64 at = 0; at < resources; at++) {
        r->queue[at].keys = r->keys + total;
        total += r->room[at];
    }
}

static void begin(Run *r, const i32 *place, const i32 *rank) {
    const Given *g = r->given;
    for (i64 op = 0; op < g->ops; op++) r->op[op] = (Op){g->waits[op], place[op], rank[op], g->tie[op]};
    lay_queues(r);
    r->comings = r->events = r->dirties = 0, r->now = 0;
    for (i64 d = 0; d < g->devices; d++) r->memory[d] = 0, r->seen[d] = -1;
    for (i64 t = 0; t < g->tensors; t++)
        for (i32 at = r->tensor[t].reader; r->tensor[t].origin == FIXED && at < r->tensor[t + 1].reader; at++) {
            i32 device = place[g->readers[at]];
            if (r->seen[device] != t) r->seen[device] = (i32)t, r->memory[device] += r->tensor[t].nbytes;
        }
    for (i64 t = 0; t < g->tensors; t++)
        if (r->tensor[t].origin == UPDATED) {
            i64 home = place[r->tensor[t].maker];
            r->memory[home] += r->tensor[t].nbytes;
            announce(r, t, home, 0);
        }
    for (i64 op = 0; op < g->ops; op++)
        if (g->waits[op] == 0 && r->op[op].left == 0) r->op[op].left = 1, wake(r, (i32)op);
    memcpy(r->peak, r->memory, (size_t)g->devices * sizeof(i64));
}

static inline void touch(Run *r, i64 at) {
    if (!r->queue[at].dirty) r->queue[at].dirty = 1, r->dirty[r->dirties++] = (i32)at;
}

static inline void push(Run *r, Coming c) {
    Queue *q = &r->queue[c.at];
    i32 here = q->size++;
    for (i32 parent; here > 0 && q->keys[parent = (here - 1) >> 1] > c.key; here = parent) q->keys[here] = q->keys[parent];
    q->keys[here] = c.key;
    if (q->busy < 0) touch(r, c.at);
}

static inline i64 pop(Queue *q) {
    i64 first = q->keys[0], moved = q->keys[--q->size];
    i32 here = 0;
    for (i32 child; (child = 2 * here + 1) < q->size; here = child) {
        if (child + 1 < q->size && q->keys[child + 1] < q->keys[child]) child++;
        if (q->keys[child] >= moved) break;
        q->keys[here] = q->keys[child];
    }
    q->keys[here] = moved;
    return first & 0xFFFFFFFF;
}

static inline void start(Run *r, i64 at) {
    const Given *g = r->given;
    i64 key = pop(&r->queue[at]), where = at, ns;
    if (at < r->devices) {
        i32 op = g->op_of_tie[key];
        r->queue[at].busy = op, ns = g->op_ns[op * r->devices + at], r->memory[at] += r->row[op].workspace;
        for (i32 m = r->row[op].make; m < r->row[op + 1].make; m++)
            if (r->tensor[g->makes[m]].base < 0) r->memory[at] += r->tensor[g->makes[m]].nbytes;
    } else {
        i64 tensor = key / r->devices;
        where = key % r->devices, r->queue[at].busy = key;
        ns = g->send_ns[tensor * g->classes + g->send_class[r->op[r->tensor[tensor].maker].place * r->devices + where]];
        r->memory[where] += r->tensor[tensor].nbytes;
    }
    if (r->memory[where] > r->peak[where]) r->peak[where] = r->memory[where];
    i32 here = r->events++;
    for (i32 parent; here > 0 && r->event[parent = (here - 1) >> 1].ns > r->now + ns; here = parent)
        r->event[here] = r->event[parent];
    r->event[here] = (Event){r->now + ns, at};
}

static inline i64 next_event(Run *r) {
    i64 at = r->event[0].at;
    Event moved = r->event[--r->events];
    i32 here = 0;
    for (i32 child; (child = 2 * here + 1) < r->events; here = child) {
        if (child + 1 < r->events && r->event[child + 1].ns < r->event[child].ns) child++;
        if (r->event[child].ns >= moved.ns) break;
        r->event[here] = r->event[child];
    }
    r->event[here] = moved;
    return at;
}

static inline void op_ends(Run *r, i64 op, i64 device) {
    const Given *g = r->given;
    Row *row = &r->row[op];
    r->memory[device] -= row->workspace;
    for (i32 m = row->make; m < row[1].make; m++) announce(r, g->makes[m], device, 1);
    for (i32 m = row[1].make - 1; m >= row->make; m--) {
        i64 tensor = g->makes[m], under = r->tensor[tensor].base;
        if (r->hold[tensor * r->devices + device] == 0) r->memory[device] -= under < 0 ? r->tensor[tensor].nbytes : 0;
        else if (under >= 0 && r->tensor[under].origin == MADE) r->hold[under * r->devices + device]++;
    }
    for (i32 m = row->read; m < row[1].read; m++) {
        Tensor *t = &r->tensor[g->reads[m]];
        if (t->origin == MADE || r->op[t->maker].place != device) let_go(r, g->reads[m], device);
    }
    for (i32 m = row->next; m < row[1].next; m++) wake(r, g->nexts[m]);
}

static inline void send_ends(Run *r, i64 key) {
    i64 tensor = key / r->devices, where = key % r->devices;
    Tensor *t = &r->tensor[tensor];
    if (t->origin == MADE) let_go(r, tensor, r->op[t->maker].place);
    for (i32 at = t->reader; at < t[1].reader; at++)
        if (r->op[r->given->readers[at]].place == where) wake(r, r->given->readers[at]);
}

static i64 step_of(Run *r) {
    i64 last = 0;
    for (;;) {
        for (i32 i = 0; i < r->comings; i++) push(r, r->coming[i]);
        r->comings = 0;
        for (i32 i = 0; i < r->dirties; i++) {
            r->queue[r->dirty[i]].dirty = 0;
            if (r->queue[r->dirty[i]].size > 0) start(r, r->dirty[i]);
        }
        r->dirties = 0;
        if (r->events == 0) return last;
        r->now = r->event[0].ns;
        while (r->events > 0 && r->event[0].ns == r->now) {
            i64 at = next_event(r), done = r->queue[at].busy;
            r->queue[at].busy = -1;
            touch(r, at);
            if (at < r->devices) last = r->now, op_ends(r, done, at);
            else send_ends(r, done);
        }
    }
}

void run_many(const Given *g, const i32 *places, const i32 *rank, i64 count, i64 *step_ns, i64 *peaks) {
    Run *r = make_run(g);
    for (i64 k = 0; k < count; k++) {
        r->peak = peaks + k * g->devices;
        begin(r, places + k * g->ops, rank);
        step_ns[k] = step_of(r);
    }
    free_run(r);
}
