//! Hidden states as they travel between two stages.

use super::model::States;
use edge_kernels::{narrow, widen};
use shared::wire::frame::{FRAME_BYTES_MAX, Hidden};
use shared::work::Precision;

/// What a frame holds besides the numbers, rounded up.
const FRAME_OVERHEAD_BYTES: usize = 256;

/// How many tokens' hidden states of this width a frame holds. None where not even one fits: such a model is not split.
pub(super) fn rows_max(width: usize, precision: Precision) -> usize {
    ((FRAME_BYTES_MAX - FRAME_OVERHEAD_BYTES) / (width * precision.bytes()).max(1)).min(usize::from(u16::MAX))
}

/// Rows of hidden states for the next stage. Nothing where a position or a count is beyond what a frame can say.
pub(super) fn encode(states: &States, start: usize, draw: bool, precision: Precision) -> Option<Hidden> {
    let numbers = states.numbers().iter();
    let bytes = match precision {
        Precision::F32 => numbers.flat_map(|number| number.to_le_bytes()).collect(),
        Precision::F16 => numbers.flat_map(|number| narrow(*number).to_le_bytes()).collect(),
    };
    Some(Hidden { start: start.try_into().ok()?, count: states.rows().try_into().ok()?, draw, bytes })
}

/// Rows `from` up to, not including, `to` of a frame. Nothing where the frame has not so many.
pub(super) fn decode(frame: &Hidden, from: usize, to: usize, width: usize, precision: Precision) -> Option<States> {
    let row = width * precision.bytes();
    let bytes = frame.bytes.get(from * row..to * row)?;
    let numbers = match precision {
        Precision::F32 => bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        Precision::F16 => bytes.as_chunks().0.iter().map(|bytes| widen(u16::from_le_bytes(*bytes))).collect(),
    };
    Some(States::new(numbers, width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_they_went() {
        let states = States::new(vec![1.5, -0.0, f32::MIN_POSITIVE, 3.1, f32::MAX, 1e-3], 3);
        let frame = encode(&states, 7, true, Precision::F32).expect("fits");
        assert_eq!((frame.start, frame.count, frame.draw, frame.bytes.len()), (7, 2, true, 24));
        assert_eq!(frame.bytes.get(..4), Some(&1.5_f32.to_le_bytes()[..]), "least significant byte first");
        assert_eq!(decode(&frame, 0, 2, 3, Precision::F32).as_ref(), Some(&states));
        assert_eq!(decode(&frame, 1, 2, 3, Precision::F32), Some(states.part(1..2)));
        assert_eq!(decode(&frame, 1, 3, 3, Precision::F32), None);
        let halves = encode(&States::new(vec![1.5, -2.0, 0.0], 3), 0, false, Precision::F16).expect("fits");
        assert_eq!(halves.bytes.len(), 6);
        assert_eq!(decode(&halves, 0, 1, 3, Precision::F16), Some(States::new(vec![1.5, -2.0, 0.0], 3)));
    }

    #[test]
    fn a_frame_is_never_too_long() {
        for (width, precision) in [(576, Precision::F32), (4_096, Precision::F32), (8_192, Precision::F16)] {
            let count = rows_max(width, precision);
            let bytes = vec![0; count * width * precision.bytes()];
            let hidden = Hidden { start: u32::MAX, count: u16::try_from(count).expect("few"), draw: true, bytes };
            assert!(shared::wire::frame::Frame::Hidden(hidden).encode().is_ok(), "{width} {precision:?}");
        }
    }
}
