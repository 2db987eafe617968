//! Families of models: what sets them apart beside their sizes.

use edge_kernels::Pairing;

/// A family, by the architecture that a GGUF file names. Models of Mistral and SmolLM are `llama` there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama and what is built like it.
    Llama,
    /// Qwen 2 and 2.5: biases on queries, keys and values.
    Qwen2,
    /// Qwen 3: each head's query and key are normed.
    Qwen3,
}

impl Family {
    /// All that the engine runs.
    pub const ALL: [Self; 3] = [Self::Llama, Self::Qwen2, Self::Qwen3];

    /// As GGUF files name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// The family of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.name() == name)
    }

    /// The metadata key of one of its figures.
    pub(super) fn key(self, name: &str) -> String {
        format!("{}.{name}", self.name())
    }

    /// Whether queries, keys and values have biases.
    pub(super) const fn has_biases(self) -> bool {
        matches!(self, Self::Qwen2)
    }

    /// Whether each head's query and key are normed.
    pub(super) const fn has_head_norms(self) -> bool {
        matches!(self, Self::Qwen3)
    }

    /// Which numbers of a head positions rotate together. GGUF files hold llama's weights permuted for neighbours.
    pub(super) const fn pairing(self) -> Pairing {
        match self {
            Self::Llama => Pairing::Neighbours,
            Self::Qwen2 | Self::Qwen3 => Pairing::Halves,
        }
    }
}
