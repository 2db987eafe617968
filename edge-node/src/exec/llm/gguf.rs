//! A GGUF file: checked, then read piece by piece. What is in it comes from outside and is believed only after a check.

use super::config::{LlmConfig, ModelError, first_line};
use candle_core::Device;
use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::{Content, Value};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::PathBuf;

/// An opened model file.
pub(super) struct Gguf {
    path: PathBuf,
    hint: Option<String>,
    sha256: String,
    reader: BufReader<File>,
    content: Content,
}

impl Gguf {
    /// Opens the configured file, checks its hash when one is configured, and reads its header.
    pub(super) fn open(config: &LlmConfig, go_on: &dyn Fn() -> bool) -> Result<Self, ModelError> {
        let file = File::open(&config.path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => ModelError::Missing { path: config.path.clone(), hint: config.hint.clone() },
            _ => ModelError::Unreadable { path: config.path.clone(), source },
        })?;
        let unreadable = |source| ModelError::Unreadable { path: config.path.clone(), source };
        // Also without a configured hash: the catalogue may want these weights and no others.
        let actual = sha256(&file, go_on).map_err(unreadable)?.ok_or(ModelError::Stopped)?;
        if let Some(expected) = config.sha256.as_ref().filter(|expected| !actual.eq_ignore_ascii_case(expected)) {
            let (path, hint) = (config.path.clone(), config.hint.clone());
            return Err(ModelError::Hash { path, expected: expected.to_ascii_lowercase(), actual, hint });
        }
        let mut reader = BufReader::new(file);
        std::io::Seek::rewind(&mut reader).map_err(unreadable)?;
        let content = Content::read(&mut reader).map_err(|error| ModelError::Damaged {
            path: config.path.clone(),
            what: format!("no GGUF header ({})", first_line(&error)),
            hint: config.hint.clone(),
        })?;
        Ok(Self { path: config.path.clone(), hint: config.hint.clone(), sha256: actual, reader, content })
    }

    /// SHA-256 of the whole file, in lower-case hex.
    pub(super) fn sha256(&self) -> &str {
        &self.sha256
    }

    /// The error for something in the file that cannot be.
    pub(super) fn damaged(&self, what: impl Into<String>) -> ModelError {
        ModelError::Damaged { path: self.path.clone(), what: what.into(), hint: self.hint.clone() }
    }

    /// The error for something that the engine does not know.
    pub(super) fn unsupported(&self, what: impl Into<String>) -> ModelError {
        ModelError::Unsupported { path: self.path.clone(), what: what.into() }
    }

    /// An entry of the metadata.
    fn entry(&self, key: &str) -> Result<&Value, ModelError> {
        self.content.metadata.get(key).ok_or_else(|| self.damaged(format!("`{key}` is missing")))
    }

    /// A text.
    pub(super) fn text(&self, key: &str) -> Result<&str, ModelError> {
        self.entry(key)?.to_string().map(String::as_str).map_err(|_| self.damaged(format!("`{key}` is no text")))
    }

    /// A text that may be absent.
    pub(super) fn text_maybe(&self, key: &str) -> Option<&str> {
        self.content.metadata.get(key)?.to_string().ok().map(String::as_str)
    }

    /// A flag; absent is false.
    pub(super) fn flag(&self, key: &str) -> bool {
        self.flag_maybe(key).unwrap_or(false)
    }

    /// A flag that may be absent.
    pub(super) fn flag_maybe(&self, key: &str) -> Option<bool> {
        self.content.metadata.get(key).and_then(|value| value.to_bool().ok())
    }

    /// A whole number, of whatever width.
    pub(super) fn count(&self, key: &str) -> Result<usize, ModelError> {
        let value = whole(self.entry(key)?).and_then(|value| usize::try_from(value).ok());
        value.ok_or_else(|| self.damaged(format!("`{key}` is no count")))
    }

    /// A whole number that may be absent.
    pub(super) fn count_maybe(&self, key: &str) -> Result<Option<usize>, ModelError> {
        if self.content.metadata.contains_key(key) { self.count(key).map(Some) } else { Ok(None) }
    }

    /// A token id that may be absent.
    pub(super) fn id_maybe(&self, key: &str) -> Result<Option<u32>, ModelError> {
        let id = self.count_maybe(key)?;
        id.map(|id| u32::try_from(id).map_err(|_| self.damaged(format!("`{key}` is no token id")))).transpose()
    }

    /// A positive real number.
    pub(super) fn real(&self, key: &str) -> Result<f64, ModelError> {
        let value = match self.entry(key)? {
            Value::F32(value) => f64::from(*value),
            Value::F64(value) => *value,
            _ => f64::NAN,
        };
        if value.is_finite() && value > 0.0 { Ok(value) } else { Err(self.damaged(format!("`{key}` is no positive number"))) }
    }

    /// A positive real number that may be absent.
    pub(super) fn real_maybe(&self, key: &str) -> Result<Option<f64>, ModelError> {
        if self.content.metadata.contains_key(key) { self.real(key).map(Some) } else { Ok(None) }
    }

    /// A list.
    fn list(&self, key: &str) -> Result<&[Value], ModelError> {
        self.entry(key)?.to_vec().map(Vec::as_slice).map_err(|_| self.damaged(format!("`{key}` is no list")))
    }

    /// A list of texts.
    pub(super) fn texts(&self, key: &str) -> Result<Vec<&str>, ModelError> {
        let bad = || self.damaged(format!("`{key}` is no list of texts"));
        self.list(key)?.iter().map(|value| value.to_string().map(String::as_str).map_err(|_| bad())).collect()
    }

    /// A list of whole numbers; empty when absent.
    pub(super) fn counts(&self, key: &str) -> Result<Vec<u64>, ModelError> {
        if !self.content.metadata.contains_key(key) {
            return Ok(Vec::new());
        }
        self.list(key)?
            .iter()
            .map(|value| whole(value).ok_or_else(|| self.damaged(format!("`{key}` is no list of counts"))))
            .collect()
    }

    /// A list of real numbers.
    pub(super) fn reals(&self, key: &str) -> Result<Vec<f64>, ModelError> {
        let real = |value: &Value| match value {
            Value::F32(value) => Some(f64::from(*value)),
            Value::F64(value) => Some(*value),
            _ => None,
        };
        let bad = || self.damaged(format!("`{key}` is no list of finite numbers"));
        self.list(key)?.iter().map(|value| real(value).filter(|real| real.is_finite()).ok_or_else(bad)).collect()
    }

    /// Names, types and sizes of all tensors.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (&str, &candle_core::quantized::gguf_file::TensorInfo)> {
        self.content.tensor_infos.iter().map(|(name, info)| (name.as_str(), info))
    }

    /// Whether there is a tensor of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.content.tensor_infos.contains_key(name)
    }

    /// Reads a tensor and checks its shape.
    pub(super) fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<QTensor, ModelError> {
        let Some(info) = self.content.tensor_infos.get(name) else {
            return Err(self.damaged(format!("tensor `{name}` is missing")));
        };
        if info.shape.dims() != shape {
            return Err(self.damaged(format!("tensor `{name}` is {:?}, want {shape:?}", info.shape.dims())));
        }
        let read = info.read(&mut self.reader, self.content.tensor_data_offset, &Device::Cpu);
        read.map_err(|error| self.damaged(format!("tensor `{name}` cannot be read ({})", first_line(&error))))
    }
}

fn whole(value: &Value) -> Option<u64> {
    match *value {
        Value::U8(v) => Some(v.into()),
        Value::U16(v) => Some(v.into()),
        Value::U32(v) => Some(v.into()),
        Value::U64(v) => Some(v),
        Value::I8(v) => v.try_into().ok(),
        Value::I16(v) => v.try_into().ok(),
        Value::I32(v) => v.try_into().ok(),
        Value::I64(v) => v.try_into().ok(),
        _ => None,
    }
}

/// SHA-256 of a file in lower-case hex; nothing when `go_on` said no on the way.
fn sha256(mut file: &File, go_on: &dyn Fn() -> bool) -> std::io::Result<Option<String>> {
    let mut hasher = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        if !go_on() {
            return Ok(None);
        }
        match file.read(&mut piece)? {
            0 => return Ok(Some(hex::encode(hasher.finalize()))),
            n => hasher.update(piece.get(..n).unwrap_or_default()),
        }
    }
}
