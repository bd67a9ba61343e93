//! Which GPUs will do for a request, by what they are.

/// What a GPU has to be; with nothing named every one will do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suitable {
    /// It is one of these models; empty: of any.
    pub models: Vec<String>,
    /// It has so much memory at least, in bytes, whoever holds that.
    pub least_memory_bytes: u64,
}

impl Suitable {
    /// Whether a GPU of this product name and with so much memory will do. A model is meant by words of the name, in their
    /// order: `A100` and `A100-80GB` mean `NVIDIA A100-SXM4-80GB`, and `A10` does not.
    #[must_use]
    pub fn has(&self, product: &str, memory_bytes: u64) -> bool {
        let is_of_it = |model: &String| {
            let mut rest = words(product);
            words(model).all(|word| rest.any(|its| its.eq_ignore_ascii_case(word)))
        };
        memory_bytes >= self.least_memory_bytes && (self.models.is_empty() || self.models.iter().any(is_of_it))
    }

    /// Whether every GPU will do.
    #[must_use]
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }
}

/// Words of a product's name.
pub fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_model_is_meant_by_whole_words_of_the_name() {
        let is_of = |model: &str, product: &str| {
            Suitable { models: vec![model.to_owned()], ..Suitable::default() }.has(product, GIB)
        };
        for (model, product) in [
            ("A100", "NVIDIA A100-SXM4-80GB"),
            ("a100-80gb", "NVIDIA A100-SXM4-80GB"),
            ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
            ("RTX 4090", "NVIDIA GeForce RTX 4090"),
            ("T4", "Tesla T4"),
        ] {
            assert!(is_of(model, product), "{model} is a {product}");
        }
        for (model, product) in [
            ("A10", "NVIDIA A100-SXM4-80GB"),
            ("A100-40GB", "NVIDIA A100-SXM4-80GB"),
            ("80GB A100", "NVIDIA A100-SXM4-80GB"),
            ("H100 H100", "NVIDIA H100 80GB HBM3"),
        ] {
            assert!(!is_of(model, product), "{model} is no {product}");
        }
    }

    #[test]
    fn one_of_several_models_will_do_and_memory_is_the_whole_gpus() {
        let wanted = Suitable { models: vec!["A100".into(), "H100".into()], least_memory_bytes: 40 * GIB };
        assert!(wanted.has("NVIDIA H100 80GB HBM3", 79 * GIB) && !wanted.has("NVIDIA L4", 79 * GIB));
        assert!(!wanted.has("NVIDIA A100-PCIE-40GB", 39 * GIB));
        assert!(Suitable::default().has("anything", 0) && Suitable::default().is_any() && !wanted.is_any());
    }
}
