// Rules 1 to 13 of the simulator (src/loadmaster/simulator/rules.py) in C++, memory and all, for plans whose kernels are
// ops on clusters without a host: what benchmarks/simulator.py --cpp compares the compiled loop with. What is read
// together lies together in records, heaps are vectors, a tensor on a device is one number (tensor << shift | device).
#include <cstdint>
#include <vector>

using i8 = std::int8_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
enum : i8 { MADE, FIXED, UPDATED };

struct Given {  // what Python gives: columns of a Layout
    i64 ops, tensors, devices, channels, shift, classes;
    const i64 *op_ns, *workspace, *nbytes, *send_ns;
    const i32 *tie, *op_of_tie, *waits, *make_start, *makes, *read_start, *reads, *next_start, *nexts, *reader_start,
        *readers, *maker, *base, *send_class, *channel;
    const i8 *origin, *stays;
};

struct Op { i32 left, place, rank, tie; };  // of one run
struct Row { i32 make, read, next; i64 workspace; };  // where the lists of an op begin
struct Tensor { i64 nbytes; i32 reader, base, maker; i8 origin, stays; };
struct Resource { std::vector<i64> heap; i64 busy; bool dirty; };  // a device or a channel
struct Event { i64 ns, at; };

template <class T, class Less> void push(std::vector<T> &heap, T what, Less less) {
    std::size_t here = heap.size();
    heap.push_back(what);
    for (std::size_t above; here > 0 && less(what, heap[above = (here - 1) / 2]); here = above) heap[here] = heap[above];
    heap[here] = what;
}

template <class T, class Less> T pop(std::vector<T> &heap, Less less) {
    T *at = heap.data(), first = at[0], moved = heap.back();
    std::size_t here = 0, size = heap.size() - 1;
    for (std::size_t child; (child = 2 * here + 1) < size; here = child) {
        child += less(at[child + 1], at[child]);  // past the end lies what is moved, which is then not less
        if (!less(at[child], moved)) break;
        at[here] = at[child];
    }
    at[here] = moved;
    heap.pop_back();
    return first;
}

struct Step {
    const Given &g;
    std::vector<Op> op;
    std::vector<Row> row;
    std::vector<Tensor> tensor;
    std::vector<i32> uses;  // [tensors << shift] of a tensor on a device that are left; written when it is made
    std::vector<Resource> resource;
    std::vector<Event> event;
    std::vector<i64> dirty, memory, low;
    std::vector<i32> seen, count;
    i64 *peak = nullptr, now = 0;

    explicit Step(const Given &given)
        : g(given), op(g.ops), row(g.ops + 1), tensor(g.tensors + 1), uses(g.tensors << g.shift),
          resource(g.devices + g.channels), memory(g.devices), low(g.devices), seen(g.devices), count(g.devices) {
        for (i64 o = 0; o <= g.ops; o++)
            row[o] = {g.make_start[o], g.read_start[o], g.next_start[o], o < g.ops ? g.workspace[o] : 0};
        for (i64 t = 0; t < g.tensors; t++)
            tensor[t] = {g.nbytes[t], g.reader_start[t], g.base[t], g.maker[t], g.origin[t], g.stays[t]};
        tensor[g.tensors].reader = g.reader_start[g.tensors];
    }

    void touch(i64 at) {
        if (!resource[at].dirty) resource[at].dirty = true, dirty.push_back(at);
    }

    void queue(i64 at, i64 rank, i64 id) {
        push(resource[at].heap, rank << 32 | id, [](i64 a, i64 b) { return a < b; });
        if (resource[at].busy < 0) touch(at);
    }

    void wake(i32 o) {
        if (--op[o].left == 0) queue(op[o].place, op[o].rank, op[o].tie);
    }

    void let_go(i64 t, i64 device) {  // rule 8: what was written over in place goes with the last that keeps it
        while (--uses[t << g.shift | device] == 0) {
            if (tensor[t].base < 0 || op[tensor[t].maker].place != device) {
                memory[device] -= tensor[t].nbytes;
                return;
            }
            t = tensor[t].base;
            if (tensor[t].origin != MADE) return;
        }
    }

    void announce(i64 t, i64 here, bool made) {  // readers here wake up, sends to the others are queued (rule 4)
        i32 local = 0, fars = 0;
        const i32 first = tensor[t].reader, last = tensor[t + 1].reader;
        if (last == first + 1) {  // most tensors have one reader
            const i32 reader = g.readers[first], where = op[reader].place;
            if (where == here) {
                local = 1;
                if (made) wake(reader);
            } else {
                fars = 1, uses[t << g.shift | where] = 1;
                if (!made) op[reader].left++;
                queue(g.channel[here * g.devices + where], op[reader].rank, t << g.shift | where);
            }
            uses[t << g.shift | here] = local + fars + tensor[t].stays;
            return;
        }
        for (i32 at = tensor[t].reader; at < tensor[t + 1].reader; at++) {
            i32 reader = g.readers[at], where = op[reader].place;
            if (where == here) {
                local++;
                if (made) wake(reader);
                continue;
            }
            if (count[where]++ == 0) seen[fars++] = where, low[where] = op[reader].rank;
            else if (op[reader].rank < low[where]) low[where] = op[reader].rank;
            if (!made) op[reader].left++;
        }
        for (i32 far = 0; far < fars; far++) {
            i64 where = seen[far], slot = t << g.shift | where;
            uses[slot] = count[where], count[where] = 0;
            queue(g.channel[here * g.devices + where], low[where], slot);
        }
        uses[t << g.shift | here] = local + fars + tensor[t].stays;
    }

    void begin(const i32 *place, const i32 *rank) {
        for (i64 o = 0; o < g.ops; o++) op[o] = {g.waits[o], place[o], rank[o], g.tie[o]};
        for (auto &r : resource) r.heap.clear(), r.busy = -1, r.dirty = false;
        event.clear(), dirty.clear(), now = 0;
        for (i64 d = 0; d < g.devices; d++) memory[d] = 0, seen[d] = -1;
        for (i64 t = 0; t < g.tensors; t++)
            for (i32 at = tensor[t].reader; tensor[t].origin == FIXED && at < tensor[t + 1].reader; at++) {
                i32 device = place[g.readers[at]];
                if (seen[device] != t) seen[device] = t, memory[device] += tensor[t].nbytes;
            }
        for (i64 t = 0; t < g.tensors; t++)
            if (tensor[t].origin == UPDATED) {
                memory[place[tensor[t].maker]] += tensor[t].nbytes;
                announce(t, place[tensor[t].maker], false);
            }
        for (i64 o = 0; o < g.ops; o++)
            if (g.waits[o] == 0 && op[o].left == 0) op[o].left = 1, wake(o);
        for (i64 d = 0; d < g.devices; d++) peak[d] = memory[d];
    }

    void start(i64 at) {  // what waits there first
        i64 key = pop(resource[at].heap, [](i64 a, i64 b) { return a < b; }) & 0xFFFFFFFF, where = at, ns;
        if (at < g.devices) {
            key = g.op_of_tie[key], ns = g.op_ns[key * g.devices + at], memory[at] += row[key].workspace;
            for (i32 m = row[key].make; m < row[key + 1].make; m++)
                if (tensor[g.makes[m]].base < 0) memory[at] += tensor[g.makes[m]].nbytes;
        } else {
            const Tensor &t = tensor[key >> g.shift];
            where = key & ((1 << g.shift) - 1);
            ns = g.send_ns[(key >> g.shift) * g.classes + g.send_class[op[t.maker].place * g.devices + where]];
            memory[where] += t.nbytes;
        }
        resource[at].busy = key;
        if (memory[where] > peak[where]) peak[where] = memory[where];
        push(event, Event{now + ns, at}, [](const Event &a, const Event &b) { return a.ns < b.ns; });
    }

    void op_ends(i64 o, i64 device) {
        memory[device] -= row[o].workspace;
        for (i32 m = row[o].make; m < row[o + 1].make; m++) announce(g.makes[m], device, true);
        for (i32 m = row[o + 1].make - 1; m >= row[o].make; m--) {  // the newest first: each keeps what it is written over
            i64 t = g.makes[m], under = tensor[t].base;
            if (uses[t << g.shift | device] == 0) memory[device] -= under < 0 ? tensor[t].nbytes : 0;
            else if (under >= 0 && tensor[under].origin == MADE) uses[under << g.shift | device]++;
        }
        for (i32 m = row[o].read; m < row[o + 1].read; m++) {
            const Tensor &t = tensor[g.reads[m]];
            if (t.origin == MADE || op[t.maker].place != device) let_go(g.reads[m], device);
        }
        for (i32 m = row[o].next; m < row[o + 1].next; m++) wake(g.nexts[m]);
    }

    void send_ends(i64 t, i64 where) {
        if (tensor[t].origin == MADE) let_go(t, op[tensor[t].maker].place);
        for (i32 at = tensor[t].reader; at < tensor[t + 1].reader; at++)
            if (op[g.readers[at]].place == where) wake(g.readers[at]);
    }

    i64 run() {  // rule 11: all that ends, ends; then what is free takes what waits for it
        for (i64 last = 0;;) {
            for (i64 at : dirty) {
                resource[at].dirty = false;
                if (!resource[at].heap.empty()) start(at);
            }
            dirty.clear();
            if (event.empty()) return last;
            for (now = event[0].ns; !event.empty() && event[0].ns == now;) {
                i64 at = pop(event, [](const Event &a, const Event &b) { return a.ns < b.ns; }).at;
                i64 done = resource[at].busy;
                resource[at].busy = -1;
                touch(at);
                if (at < g.devices) last = now, op_ends(done, at);
                else send_ends(done >> g.shift, done & ((1 << g.shift) - 1));
            }
        }
    }
};

extern "C" void run_many(const Given *given, const i32 *places, const i32 *rank, i64 count, i64 *step_ns, i64 *peaks) {
    Step step(*given);
    for (i64 k = 0; k < count; k++) {
        step.peak = peaks + k * given->devices;
        step.begin(places + k * given->ops, rank);
        step_ns[k] = step.run();
    }
}
