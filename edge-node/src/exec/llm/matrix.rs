//! Weights, and their products with rows of numbers.
//!
//! What the kernels hold in tiles is multiplied there; other formats, and all quantised ones on CPUs without fast kernels of ours,
//! by candle. In both ways a row's result depends on that row alone.

use super::config::WeightForm;
use super::load::EMBEDDING;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor};
use edge_kernels::{Activations, Blocks, Floats, Level, Tiles};
use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

/// Rows that candle multiplies at once. From 32 on it would use other instructions for some formats, with other roundings.
const PIECE_ROWS: usize = 16;

/// A matrix of weights.
#[derive(Clone)]
pub(super) enum Matrix {
    /// Quantised in blocks of 32.
    Tiles(Arc<Tiles>),
    /// Not quantised.
    Floats(Arc<Floats>),
    /// In a format that only candle knows.
    Other(Arc<QTensor>),
}

/// In what form weights of a type are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// In tiles.
    Tiles(Blocks),
    /// Widened.
    Floats,
    /// By candle, in this type.
    Other(GgmlDType),
}

impl Form {
    /// For a tensor of this name, type and shape on this CPU, as the operator wishes it. The token table keeps more bits than four:
    /// it is read as well as multiplied, and small errors there go everywhere.
    pub(super) fn of(wish: WeightForm, name: &str, stored: GgmlDType) -> Self {
        let wanted = match wish {
            WeightForm::F32 => GgmlDType::F32,
            WeightForm::Q8_0 => GgmlDType::Q8_0,
            WeightForm::Q4_0 if name != EMBEDDING => GgmlDType::Q4_0,
            WeightForm::Auto | WeightForm::Q4_0 => stored,
        };
        let blocks = match wanted {
            GgmlDType::Q4_0 => Blocks::Q4_0,
            GgmlDType::Q4_1 => Blocks::Q4_1,
            GgmlDType::Q5_0 => Blocks::Q5_0,
            GgmlDType::Q5_1 => Blocks::Q5_1,
            GgmlDType::Q8_0 => Blocks::Q8_0,
            // Products are computed in f32.
            GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16 => return Self::Floats,
            other => return Self::Other(other),
        };
        if edge_kernels::level() > Level::Plain {
            return Self::Tiles(blocks);
        }
        // Types without a fast kernel there are requantised: the scalar fallback is about five times slower.
        Self::Other(if wanted == GgmlDType::Q4_0 { wanted } else { GgmlDType::Q8_0 })
    }

    /// Memory of a matrix with these dimensions; saturates, since a damaged file may claim any size.
    pub(super) fn bytes(self, dims: &[usize]) -> u64 {
        let elements = dims.iter().fold(1_u64, |product, dim| product.saturating_mul(*dim as u64));
        match (self, dims) {
            (Self::Tiles(blocks), [rows, width]) => blocks.tiled_bytes(*rows, *width),
            (Self::Floats, [rows, width]) => Floats::packed_bytes(*rows, *width),
            (Self::Tiles(_) | Self::Floats, _) => elements.saturating_mul(4),
            (Self::Other(form), _) => {
                let plain = elements.div_ceil(form.block_size() as u64).saturating_mul(form.type_size() as u64);
                // Kernels for wide vectors keep a second, tiled copy of some types, made at their first product. It is counted
                // whether or not this CPU has them, since the figure is compared between machines.
                match form {
                    GgmlDType::Q4K => plain.saturating_mul(7) / 3,
                    GgmlDType::Q6K => plain.saturating_mul(5) / 2,
                    _ => plain,
                }
            }
        }
    }
}

/// Rows on their way into a product. Rounded once for all matrices that they meet.
pub(super) struct Operand {
    numbers: CpuStorage,
    width: usize,
    rounded: OnceCell<Activations>,
}

impl Operand {
    /// Rows of `width` numbers.
    pub(super) fn new(numbers: Vec<f32>, width: usize) -> Self {
        Self { numbers: CpuStorage::F32(numbers), width, rounded: OnceCell::new() }
    }

    fn numbers(&self) -> Result<&[f32]> {
        self.numbers.as_slice()
    }

    fn rounded(&self) -> Result<&Activations> {
        let numbers = self.numbers()?;
        Ok(self.rounded.get_or_init(|| Activations::new(numbers, self.width)))
    }
}

impl Matrix {
    /// Takes a tensor of a file in this form.
    ///
    /// # Errors
    /// Whatever the conversion says; rows that are no whole number of blocks.
    pub(super) fn new(stored: QTensor, form: Form) -> Result<Self> {
        let (rows, width) = stored.shape().dims2()?;
        Ok(match form {
            Form::Tiles(blocks) => {
                let stored = converted(stored, dtype(blocks))?;
                let tiles = Tiles::pack(blocks, &stored.data()?, rows, width).map_err(candle_core::Error::wrap)?;
                Self::Tiles(Arc::new(tiles))
            }
            Form::Floats => {
                let numbers: Vec<f32> = stored.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1()?;
                Self::Floats(Arc::new(Floats::pack(&numbers, width)))
            }
            Form::Other(form) => Self::Other(Arc::new(converted(stored, form)?)),
        })
    }

    /// The product of each row with each row of the matrix, one row of results for each of the former.
    pub(super) fn multiply(&self, rows: &Operand) -> Result<Vec<f32>> {
        match self {
            Self::Tiles(tiles) => {
                let rounded = rows.rounded()?;
                let mut out = vec![0.0; rounded.rows() * tiles.rows()];
                tiles.multiply(rounded, &mut out, &spread);
                Ok(out)
            }
            Self::Floats(floats) => {
                let numbers = rows.numbers()?;
                let mut out = vec![0.0; numbers.len() / rows.width * floats.rows()];
                floats.multiply(numbers, &mut out, &spread);
                Ok(out)
            }
            Self::Other(tensor) => other(tensor, rows),
        }
    }

    /// Writes row `row` of the matrix.
    pub(super) fn unpack_row(&self, row: usize, numbers: &mut [f32]) -> Result<()> {
        match self {
            Self::Tiles(tiles) => tiles.unpack_row(row, numbers),
            Self::Floats(floats) => floats.unpack_row(row, numbers),
            Self::Other(tensor) => {
                let row = u32::try_from(row).map_err(candle_core::Error::wrap)?;
                let unpacked: Vec<f32> = tensor.embedding(&Tensor::new(&[row], &Device::Cpu)?)?.flatten_all()?.to_vec1()?;
                numbers.copy_from_slice(&unpacked);
            }
        }
        Ok(())
    }
}

/// The tensor in this type.
fn converted(stored: QTensor, wanted: GgmlDType) -> Result<QTensor> {
    if stored.dtype() == wanted {
        return Ok(stored);
    }
    let dims = stored.shape().dims();
    if dims.last().is_none_or(|width| width % wanted.block_size() != 0) {
        candle_core::bail!("rows of {dims:?} are no whole number of {wanted:?} blocks of {}", wanted.block_size())
    }
    QTensor::quantize(&stored.dequantize(&Device::Cpu)?, wanted)
}

const fn dtype(blocks: Blocks) -> GgmlDType {
    match blocks {
        Blocks::Q4_0 => GgmlDType::Q4_0,
        Blocks::Q4_1 => GgmlDType::Q4_1,
        Blocks::Q5_0 => GgmlDType::Q5_0,
        Blocks::Q5_1 => GgmlDType::Q5_1,
        Blocks::Q8_0 => GgmlDType::Q8_0,
    }
}

/// A product by candle, in pieces for which it computes each row alike.
fn other(tensor: &QTensor, rows: &Operand) -> Result<Vec<f32>> {
    // Beyond x86 its kernels for one row and for several round differently, so there is one row at a time.
    let piece = if cfg!(target_arch = "x86_64") { PIECE_ROWS } else { 1 };
    // On x86 the same is so for this type, so there are always two or more.
    let twice = cfg!(target_arch = "x86_64") && tensor.dtype() == GgmlDType::Q6K;
    let (height, width) = tensor.shape().dims2()?;
    let mut out = Vec::new();
    for piece in rows.numbers()?.chunks(piece * width) {
        let count = piece.len() / width;
        let repeated = if twice && count == 1 { 2 } else { 1 };
        let numbers = CpuStorage::F32(piece.repeat(repeated));
        let layout = Layout::contiguous(Shape::from((count * repeated, width)));
        let (product, _) = tensor.cpu_fwd(&numbers, &layout)?;
        out.extend_from_slice(product.as_slice::<f32>()?.get(..count * height).unwrap_or_default());
    }
    Ok(out)
}

/// Spreads work over the threads that candle keeps for the whole process.
pub(super) fn spread(count: usize, piece: &(dyn Fn(Range<usize>) + Sync)) {
    candle_core::utils::barrier_pool().execute_chunked(count, piece);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(stored: GgmlDType) -> Form {
        Form::of(WeightForm::Auto, "blk.0.ffn_up.weight", stored)
    }

    #[test]
    fn a_wish_for_few_bits_spares_the_token_table() {
        let wished = |name| Form::of(WeightForm::Q4_0, name, GgmlDType::F32);
        assert_ne!(wished("blk.0.ffn_up.weight"), Form::Floats);
        assert_eq!(wished(EMBEDDING), Form::Floats);
    }

    #[test]
    fn sizes_are_those_of_the_held_form() {
        assert_eq!(form(GgmlDType::F16).bytes(&[16, 10]), 4 * 160);
        assert_eq!(form(GgmlDType::F32).bytes(&[10]), 40);
        assert_eq!(form(GgmlDType::Q4K).bytes(&[2, 256]), 2 * 144 * 7 / 3, "with the tiled copy");
        if edge_kernels::level() > Level::Plain {
            assert_eq!(form(GgmlDType::Q4_1).bytes(&[576, 1536]), 576 * 1536 / 32 * 20);
        }
        assert_eq!(form(GgmlDType::Q8_0).bytes(&[usize::MAX, usize::MAX]), u64::MAX);
    }

    /// A matrix in a format of candle's, and rows to multiply.
    fn example(dtype: GgmlDType) -> (Matrix, Vec<f32>) {
        let numbers: Vec<f32> = (0..48 * 512).map(|i| (i as f32 * 0.37).sin()).collect();
        let tensor = Tensor::from_vec(numbers, (48, 512), &Device::Cpu).expect("a tensor");
        let stored = QTensor::quantize(&tensor, dtype).expect("quantises");
        let matrix = Matrix::new(stored, form(dtype)).expect("held");
        (matrix, (0..35 * 512).map(|i| (i as f32 * 0.11).cos()).collect())
    }

    #[test]
    fn each_row_is_the_same_alone_and_among_others() {
        use GgmlDType::{BF16, F16, F32, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
        for form in [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K] {
            let (matrix, rows) = example(form);
            let run = |rows: &[f32]| matrix.multiply(&Operand::new(rows.to_vec(), 512)).expect("multiplies");
            let alone: Vec<f32> = rows.chunks(512).flat_map(run).collect();
            for together in [2, 4, 7, 16, 35] {
                assert!(rows.chunks(together * 512).flat_map(run).collect::<Vec<f32>>() == alone, "{form:?}: {together} at once");
            }
            let mut row = vec![0.0; 512];
            matrix.unpack_row(17, &mut row).expect("unpacks");
            let dot: f32 = rows.iter().zip(&row).map(|(a, b)| a * b).sum();
            let size: f32 = rows.iter().take(512).zip(&row).map(|(a, b)| (a * b).abs()).sum();
            assert!((alone.get(17).copied().unwrap_or_default() - dot).abs() < 0.01 * size, "{form:?}");
        }
    }
}
