//! Which GPUs will do for a request, by which and what they are.

/// What a GPU has to be; with nothing named every one will do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suitable {
    /// It is one of these, by its key; empty: any.
    pub keys: Vec<String>,
    /// It is one of these models; empty: of any.
    pub models: Vec<String>,
    /// It has so much memory at least, in bytes, whoever holds that.
    pub least_memory_bytes: u64,
}

impl Suitable {
    /// The keys of those of `gpus`, by number and key, that are called by one of these names: a number, or the beginning of a key.
    /// Of one that is not there the name itself, which none has.
    #[must_use]
    pub fn keys_of<'a>(names: &[String], gpus: impl Iterator<Item = (u32, &'a str)> + Clone) -> Vec<String> {
        let is_called = |name: &str, number: u32, key: &str| {
            let begins = key.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name));
            name.parse() == Ok(number) || (!name.is_empty() && begins)
        };
        let mut keys = Vec::new();
        for name in names {
            let known = keys.len();
            keys.extend(
                gpus.clone().filter(|(number, key)| is_called(name, *number, key)).map(|(_, key)| key.to_owned()),
            );
            if keys.len() == known {
                keys.push(name.clone());
            }
        }
        keys
    }

    /// Whether the GPU of this key, with this product name and so much memory will do. A model is meant by words of the name, in their
    /// order: `A100` and `A100-80GB` mean `NVIDIA A100-SXM4-80GB`, and `A10` does not.
    #[must_use]
    pub fn has(&self, key: &str, product: &str, memory_bytes: u64) -> bool {
        let is_named = self.keys.is_empty() || self.keys.iter().any(|named| named == key);
        is_named && self.has_what_it_is(product, memory_bytes)
    }

    /// The same whichever it is.
    #[must_use]
    pub fn has_what_it_is(&self, product: &str, memory_bytes: u64) -> bool {
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
            Suitable { models: vec![model.to_owned()], ..Suitable::default() }.has("any", product, GIB)
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
        let wanted = Suitable {
            models: vec!["A100".into(), "H100".into()],
            least_memory_bytes: 40 * GIB,
            ..Suitable::default()
        };
        assert!(wanted.has("g", "NVIDIA H100 80GB HBM3", 79 * GIB) && !wanted.has("g", "NVIDIA L4", 79 * GIB));
        assert!(!wanted.has("g", "NVIDIA A100-PCIE-40GB", 39 * GIB));
        assert!(Suitable::default().has("g", "anything", 0) && Suitable::default().is_any() && !wanted.is_any());
    }

    #[test]
    fn a_gpu_that_is_named_has_to_be_what_is_asked_for_as_well() {
        let named = Suitable { keys: vec!["a".into(), "b".into()], models: vec!["L4".into()], ..Suitable::default() };
        assert!(named.has("b", "NVIDIA L4", GIB) && !named.has("c", "NVIDIA L4", GIB) && !named.is_any());
        assert!(!named.has("a", "NVIDIA H100 80GB HBM3", GIB));
    }

    #[test]
    fn a_gpu_is_called_by_its_number_or_the_beginning_of_its_key() {
        let gpus = [(0, "GPU-51aa-0"), (1, "GPU-51bb-1"), (10, "GPU-62cc-1")];
        let keys = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            Suitable::keys_of(&names, gpus.into_iter())
        };
        assert_eq!(keys(&["1"]), ["GPU-51bb-1"], "10 begins with 1, and is another one");
        assert_eq!(keys(&["GPU-62CC"]), ["GPU-62cc-1"]);
        assert_eq!(keys(&["GPU-51"]), ["GPU-51aa-0", "GPU-51bb-1"], "either will do");
        assert_eq!(keys(&["10", "GPU-51aa-0"]), ["GPU-62cc-1", "GPU-51aa-0"]);
        assert_eq!(keys(&["3"]), ["3"], "never any other one");
        assert_eq!(keys(&[]), Vec::<String>::new());
    }
}
