//! Hidden states as they travel between two stages.

use candle_core::{DType, Device, Result, Tensor};
use shared::wire::frame::{FRAME_BYTES_MAX, Hidden};
use shared::work::Precision;

/// What a frame holds besides the numbers, rounded up.
const FRAME_OVERHEAD_BYTES: usize = 256;

/// How many tokens' hidden states of this width a frame holds. None where not even one fits: such a model is not split.
pub(super) fn rows_max(width: usize, precision: Precision) -> usize {
    ((FRAME_BYTES_MAX - FRAME_OVERHEAD_BYTES) / (width * precision.bytes()).max(1)).min(usize::from(u16::MAX))
}

/// Rows of hidden states for the next stage.
pub(super) fn encode(rows: &Tensor, start: usize, draw: bool, precision: Precision) -> Result<Hidden> {
    let count = rows.dim(0)?;
    let mut bytes = Vec::with_capacity(rows.elem_count() * precision.bytes());
    rows.to_dtype(form(precision))?.write_bytes(&mut bytes)?;
    let number = |_| candle_core::Error::Msg("too many rows for a frame".to_owned());
    Ok(Hidden { start: u32::try_from(start).map_err(number)?, count: u16::try_from(count).map_err(number)?, draw, bytes })
}

/// Rows `from` up to, not including, `to` of a frame. Nothing where the frame has not so many.
pub(super) fn decode(frame: &Hidden, from: usize, to: usize, width: usize, precision: Precision) -> Option<Result<Tensor>> {
    let row = width * precision.bytes();
    let bytes = frame.bytes.get(from * row..to * row)?;
    let rows = Tensor::from_raw_buffer(bytes, form(precision), &[to - from, width], &Device::Cpu);
    Some(rows.and_then(|rows| rows.to_dtype(DType::F32)))
}

fn form(precision: Precision) -> DType {
    match precision {
        Precision::F32 => DType::F32,
        Precision::F16 => DType::F16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_they_went() {
        let rows = Tensor::new(&[[1.5_f32, -0.0, f32::MIN_POSITIVE], [3.1, f32::MAX, 1e-3]], &Device::Cpu).expect("rows");
        let frame = encode(&rows, 7, true, Precision::F32).expect("encodes");
        assert_eq!((frame.start, frame.count, frame.draw, frame.bytes.len()), (7, 2, true, 24));
        assert_eq!(frame.bytes.get(..4), Some(&1.5_f32.to_le_bytes()[..]), "least significant byte first");
        let back: Vec<Vec<f32>> =
            decode(&frame, 0, 2, 3, Precision::F32).expect("both").expect("decodes").to_vec2().expect("rows");
        assert_eq!(back, rows.to_vec2::<f32>().expect("rows"));
        let second: Vec<Vec<f32>> =
            decode(&frame, 1, 2, 3, Precision::F32).expect("one").expect("decodes").to_vec2().expect("rows");
        assert_eq!(second, [[3.1_f32, f32::MAX, 1e-3]]);
        assert!(decode(&frame, 1, 3, 3, Precision::F32).is_none());
        assert_eq!(encode(&rows, 0, false, Precision::F16).expect("encodes").bytes.len(), 12);
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
