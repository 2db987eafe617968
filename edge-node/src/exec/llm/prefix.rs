//! Keys and values of what was computed before, by the tokens that led to them: a prompt that begins like an earlier one, such as
//! the next turn of a conversation, is computed from where they part.
//!
//! Kept in blocks of [`BLOCK`] tokens, each behind the one before it, so what is shared is stored once. A block is shared with the
//! sequences that use it and never written again. What was not used for longest goes first, ends before beginnings. Tokens are
//! text: none of this may ever be logged or shown.

use super::cache::Block;
use edge_kernels::BLOCK;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What comes before the first block.
const ROOT: u64 = 0;

/// Blocks of earlier sequences.
pub(super) struct Prefixes {
    /// Blocks that may be kept.
    blocks_max: usize,
    nodes: HashMap<u64, Node>,
    /// A block by the one before it and its tokens.
    index: HashMap<(u64, [u32; BLOCK]), u64>,
    /// Blocks that none follows, by when they were used last.
    ends: BTreeSet<(u64, u64)>,
    /// Counts uses and blocks.
    clock: u64,
    counts: Arc<Counts>,
}

struct Node {
    before: u64,
    ids: [u32; BLOCK],
    block: Arc<Block>,
    used: u64,
    /// How many blocks follow.
    after: usize,
}

/// What became of prompts, counted since the start.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) tokens: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) blocks: AtomicU64,
}

impl Prefixes {
    /// With room for so many blocks; none switches it off.
    pub(super) fn new(blocks_max: usize, counts: Arc<Counts>) -> Self {
        let (nodes, index, ends) = (HashMap::new(), HashMap::new(), BTreeSet::new());
        Self { blocks_max, nodes, index, ends, clock: ROOT, counts }
    }

    /// The blocks of the longest known beginning of these tokens, of which at least one remains to be computed.
    pub(super) fn longest(&mut self, ids: &[u32]) -> Vec<Arc<Block>> {
        let mut found = Vec::new();
        if self.blocks_max == 0 {
            return found;
        }
        let mut before = ROOT;
        let within = ids.get(..ids.len().saturating_sub(1)).unwrap_or_default();
        for ids in within.as_chunks::<BLOCK>().0 {
            let Some(number) = self.index.get(&(before, *ids)).copied() else { break };
            self.touch(number);
            found.extend(self.nodes.get(&number).map(|node| Arc::clone(&node.block)));
            before = number;
        }
        let counted = if found.is_empty() { &self.counts.misses } else { &self.counts.hits };
        counted.fetch_add(1, Ordering::Relaxed);
        self.counts.tokens.fetch_add((found.len() * BLOCK) as u64, Ordering::Relaxed);
        found
    }

    /// Keeps the blocks of a sequence that begins with these tokens.
    pub(super) fn keep(&mut self, ids: &[u32], blocks: &[Arc<Block>]) {
        let mut before = ROOT;
        for (ids, block) in ids.as_chunks::<BLOCK>().0.iter().zip(blocks) {
            let number = match self.index.get(&(before, *ids)).copied() {
                Some(number) => {
                    self.touch(number);
                    number
                }
                None => match self.add(before, *ids, Arc::clone(block)) {
                    Some(number) => number,
                    None => break,
                },
            };
            before = number;
        }
        self.counts.blocks.store(self.nodes.len() as u64, Ordering::Relaxed);
    }

    /// Adds a block, in the place of an older one if there is no more room. Nothing when all older ones lead to it.
    fn add(&mut self, before: u64, ids: [u32; BLOCK], block: Arc<Block>) -> Option<u64> {
        if self.nodes.len() >= self.blocks_max && !self.evict(before) {
            return None;
        }
        self.clock += 1;
        let number = self.clock;
        self.index.insert((before, ids), number);
        self.nodes.insert(number, Node { before, ids, block, used: number, after: 0 });
        self.ends.insert((number, number));
        if let Some(node) = self.nodes.get_mut(&before) {
            node.after += 1;
            self.ends.remove(&(node.used, before));
        }
        Some(number)
    }

    /// Drops the end that was not used for longest, but not `kept`.
    fn evict(&mut self, kept: u64) -> bool {
        let Some((used, number)) = self.ends.iter().copied().find(|(_, number)| *number != kept) else { return false };
        self.ends.remove(&(used, number));
        if let Some(node) = self.nodes.remove(&number) {
            self.index.remove(&(node.before, node.ids));
            if let Some(before) = self.nodes.get_mut(&node.before) {
                before.after -= 1;
                if before.after == 0 {
                    self.ends.insert((before.used, node.before));
                }
            }
        }
        self.counts.evicted.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn touch(&mut self, number: u64) {
        self.clock += 1;
        let Some(node) = self.nodes.get_mut(&number) else { return };
        let used = std::mem::replace(&mut node.used, self.clock);
        if self.ends.remove(&(used, number)) {
            self.ends.insert((self.clock, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(mark: f32) -> Arc<Block> {
        Arc::new(Block::Wide(vec![mark]))
    }

    /// Tokens of a sequence whose blocks are marked so.
    fn ids(marks: &[u32]) -> Vec<u32> {
        marks.iter().flat_map(|mark| [*mark; BLOCK]).chain([7]).collect()
    }

    fn keep(prefixes: &mut Prefixes, marks: &[u32]) {
        let blocks: Vec<Arc<Block>> = marks.iter().map(|mark| block(*mark as f32)).collect();
        prefixes.keep(&ids(marks), &blocks);
    }

    fn longest(prefixes: &mut Prefixes, marks: &[u32]) -> usize {
        let found = prefixes.longest(&ids(marks));
        for (block, mark) in found.iter().zip(marks) {
            assert!(matches!(&**block, Block::Wide(numbers) if numbers[..] == [*mark as f32]), "the block of these tokens");
        }
        found.len()
    }

    #[test]
    fn the_longest_beginning_is_found_and_stored_once() {
        let mut prefixes = Prefixes::new(10, Arc::default());
        keep(&mut prefixes, &[1, 2, 3]);
        keep(&mut prefixes, &[1, 2, 4]);
        assert_eq!(prefixes.nodes.len(), 4);
        for (marks, expected) in [(&[1, 2, 4, 5][..], 3), (&[1, 2, 3], 3), (&[1, 5], 1), (&[2, 3], 0)] {
            assert_eq!(longest(&mut prefixes, marks), expected, "{marks:?}");
        }
        let whole: Vec<u32> = [1; BLOCK].to_vec();
        assert_eq!(prefixes.longest(&whole).len(), 0, "the last token is always computed");
        let counts = &prefixes.counts;
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        assert_eq!((count(&counts.hits), count(&counts.misses), count(&counts.blocks)), (3, 2, 4));
        assert_eq!(count(&counts.tokens), 7 * BLOCK as u64);
    }

    #[test]
    fn what_was_used_longest_ago_goes_first_and_ends_before_beginnings() {
        let mut prefixes = Prefixes::new(4, Arc::default());
        keep(&mut prefixes, &[1, 2]);
        keep(&mut prefixes, &[3, 4]);
        assert_eq!(longest(&mut prefixes, &[1, 2]), 2);
        keep(&mut prefixes, &[5]);
        assert_eq!((longest(&mut prefixes, &[3, 4]), longest(&mut prefixes, &[1, 2])), (1, 2));
        keep(&mut prefixes, &[6, 7, 8, 9, 10]);
        assert_eq!(prefixes.nodes.len(), 4);
        assert_eq!(longest(&mut prefixes, &[6, 7, 8, 9, 10]), 4, "never at the price of its own beginning");
        assert_eq!(prefixes.counts.evicted.load(Ordering::Relaxed), 5);
        assert_eq!(prefixes.index.len(), 4);
    }

    #[test]
    fn without_room_nothing_is_kept() {
        let mut prefixes = Prefixes::new(0, Arc::default());
        keep(&mut prefixes, &[1, 2]);
        assert_eq!((longest(&mut prefixes, &[1, 2]), prefixes.nodes.len()), (0, 0));
        assert_eq!(prefixes.counts.misses.load(Ordering::Relaxed), 0, "switched off, it counts nothing");
    }
}
