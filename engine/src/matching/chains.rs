//! First-in-first-out lists through a slab, and a hash index of such lists.
//!
//! ```text
//! buckets   [ . | 4 | . | 9 | ... ]         u32 node index, NIL = none
//!                 |       |
//!                 |       +-> 9 -chain-> 2   heads of two keys in a bucket
//!                 v
//!                 4 -next-> 7 -next-> 8      one key, oldest first
//!                 \_____prev of head_____/   the head knows its tail
//! ```
//!
//! # Invariants
//! 1. `next` of the tail is NIL; `prev` of the head is the tail; any other
//!    `prev` is the node before.
//! 2. `chain` means something in heads only; each key has one head.
//! 3. At most one key per four buckets: at one per two, a post and a take among
//!    1000 scattered receives took 40 ns instead of 25 (same machine as the
//!    table in `mod.rs`, busier). Removing leaves no tombstone.
//! 4. Keys that differ in the low four bits only share a cache line of buckets
//!    and never a bucket: a run of consecutive tags is walked in order, which
//!    is what keeps 10^5 entries about as cheap as one.

/// No node.
pub(super) const NIL: u32 = u32::MAX;

/// Neighbors in one list.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub(super) next: u32,
    pub(super) prev: u32,
}

impl Ends {
    pub(super) const NONE: Self = Self {
        next: NIL,
        prev: NIL,
    };
}

/// A node that can be in list number `LIST`.
pub(super) trait Fifo<const LIST: usize> {
    fn ends(&self) -> &Ends;
    fn ends_mut(&mut self) -> &mut Ends;
}

/// A node that can be in a [`KeyIndex`].
pub(super) trait Keyed: Fifo<0> {
    fn key(&self) -> u64;
    fn chain(&self) -> u32;
    fn set_chain(&mut self, head: u32);
}

/// Appends node `at` to the list of `head`, which becomes `at` if it was empty.
#[inline]
pub(super) fn append<const LIST: usize, N: Fifo<LIST>>(nodes: &mut [N], head: &mut u32, at: u32) {
    let tail = if *head == NIL {
        *head = at;
        at
    } else {
        let head = nodes[*head as usize].ends_mut();
        let tail = std::mem::replace(&mut head.prev, at);
        nodes[tail as usize].ends_mut().next = at;
        tail
    };
    *nodes[at as usize].ends_mut() = Ends {
        next: NIL,
        prev: tail,
    };
}

/// Removes node `at` from the list of `head`, which follows.
#[inline]
pub(super) fn detach<const LIST: usize, N: Fifo<LIST>>(nodes: &mut [N], head: &mut u32, at: u32) {
    let Ends { next, prev } = *nodes[at as usize].ends();
    if at == *head {
        *head = next;
        if next != NIL {
            nodes[next as usize].ends_mut().prev = prev;
        }
    } else {
        nodes[prev as usize].ends_mut().next = next;
        let after = if next == NIL { *head } else { next };
        nodes[after as usize].ends_mut().prev = prev;
    }
}

/// From a key to the list of its nodes, oldest first.
pub(super) struct KeyIndex {
    /// Length is 0 or a power of two, at least [`SMALLEST`].
    buckets: Vec<u32>,
    /// 64 - log2(buckets).
    shift: u32,
    /// Distinct keys present.
    keys: usize,
}

/// Buckets of the first table: four cache lines.
const SMALLEST: usize = 64;

/// Keys under one cache line of buckets.
const LINE: u64 = 16;

impl KeyIndex {
    pub(super) const fn new() -> Self {
        Self {
            buckets: Vec::new(),
            shift: 0,
            keys: 0,
        }
    }

    /// Multiplicative hash of all but the low bits, which select within the
    /// line; the exclusive or keeps strides of 16 from meeting in one column.
    #[inline]
    fn bucket(&self, key: u64) -> usize {
        let hash = (key / LINE).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift;
        (hash ^ (key % LINE)) as usize
    }

    /// The head of `key`, and the head before it in the chain, or NIL.
    #[inline]
    fn find<N: Keyed>(&self, nodes: &[N], bucket: usize, key: u64) -> (u32, u32) {
        let mut before = NIL;
        let mut at = self.buckets[bucket];
        while at != NIL && nodes[at as usize].key() != key {
            before = at;
            at = nodes[at as usize].chain();
        }
        (at, before)
    }

    /// The oldest node with `key`, or NIL.
    #[inline]
    pub(super) fn first<N: Keyed>(&self, nodes: &[N], key: u64) -> u32 {
        if self.keys == 0 {
            return NIL;
        }
        self.find(nodes, self.bucket(key), key).0
    }

    /// Adds node `at` as the youngest of its key.
    // The optimizer's own choice changed with code elsewhere: 40 instructions a message.
    #[inline(always)]
    pub(super) fn insert<N: Keyed>(&mut self, nodes: &mut [N], at: u32) {
        if self.keys * 4 >= self.buckets.len() {
            self.grow(nodes);
        }
        let key = nodes[at as usize].key();
        let bucket = self.bucket(key);
        let (mut head, _) = self.find(nodes, bucket, key);
        if head == NIL {
            self.keys += 1;
            nodes[at as usize].set_chain(self.buckets[bucket]);
            self.buckets[bucket] = at;
        }
        append(nodes, &mut head, at);
    }

    /// Removes and returns the oldest node with `key`, or NIL.
    #[inline]
    pub(super) fn take_first<N: Keyed>(&mut self, nodes: &mut [N], key: u64) -> u32 {
        if self.keys == 0 {
            return NIL;
        }
        let bucket = self.bucket(key);
        let (head, before) = self.find(nodes, bucket, key);
        if head != NIL {
            self.remove_below(nodes, bucket, head, before, head);
        }
        head
    }

    /// Removes node `at`, which is present.
    #[inline]
    pub(super) fn remove<N: Keyed>(&mut self, nodes: &mut [N], at: u32) {
        let key = nodes[at as usize].key();
        let bucket = self.bucket(key);
        let (head, before) = self.find(nodes, bucket, key);
        self.remove_below(nodes, bucket, head, before, at);
    }

    #[inline(always)]
    fn remove_below<N: Keyed>(
        &mut self,
        nodes: &mut [N],
        bucket: usize,
        head: u32,
        before: u32,
        at: u32,
    ) {
        let mut now = head;
        detach(nodes, &mut now, at);
        if now == head {
            return;
        }
        let chain = nodes[head as usize].chain();
        if now == NIL {
            self.keys -= 1;
            now = chain;
        } else {
            nodes[now as usize].set_chain(chain);
        }
        if before == NIL {
            self.buckets[bucket] = now;
        } else {
            nodes[before as usize].set_chain(now);
        }
    }

    #[cold]
    fn grow<N: Keyed>(&mut self, nodes: &mut [N]) {
        let old = std::mem::take(&mut self.buckets);
        self.set_len((old.len() * 2).max(SMALLEST));
        for mut head in old {
            while head != NIL {
                let node = &mut nodes[head as usize];
                let (key, chain) = (node.key(), node.chain());
                let bucket = self.bucket(key);
                node.set_chain(self.buckets[bucket]);
                self.buckets[bucket] = head;
                head = chain;
            }
        }
    }

    fn set_len(&mut self, len: usize) {
        self.buckets = vec![NIL; len];
        self.shift = 64 - len.ilog2();
    }

    /// Gives a past burst's buckets back, down to what `entries` keys need.
    /// The index must be empty.
    #[cold]
    pub(super) fn shrink(&mut self, entries: usize) {
        let len = (entries * 4).next_power_of_two().max(SMALLEST);
        if len < self.buckets.len() {
            self.set_len(len);
        }
    }

    #[cfg(test)]
    pub(super) fn bucket_count(&self) -> usize {
        self.buckets.len()
    }

    /// How many keys each bucket holds, for tests of the hash.
    #[cfg(test)]
    pub(super) fn chain_lengths<N: Keyed>(&self, nodes: &[N]) -> Vec<usize> {
        let length = |&head: &u32| {
            let mut length = 0;
            let mut at = head;
            while at != NIL {
                length += 1;
                at = nodes[at as usize].chain();
            }
            length
        };
        self.buckets.iter().map(length).collect()
    }
}
