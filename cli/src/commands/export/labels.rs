//! As labels of a Kubernetes node.

use super::{boards, branch, least_memory_bytes, products, word};
use gpool_protocol::GpuView;

/// A value, or what stands behind the slash of a key, has no more letters.
const LONGEST: usize = 63;

/// One a line, `key=value`.
pub fn lines(gpus: &[GpuView]) -> String {
    let products = products(gpus);
    let mut labels = vec![("node".to_owned(), (!products.is_empty()).to_string())];
    let mut put = |key: &str, value: String| labels.push((key.to_owned(), value));
    put("gpu.count", boards(gpus).count().to_string());
    match products.keys().collect::<Vec<_>>().as_slice() {
        [] => {}
        [only] => put("gpu.product", at_most(&word(only, "-"), LONGEST)),
        _ => put("gpu.product", "mixed".to_owned()),
    }
    // In MiB, as NVIDIA's own labels have it.
    least_memory_bytes(gpus).into_iter().for_each(|bytes| put("gpu.memory", (bytes >> 20).to_string()));
    for (name, count) in &products {
        put(&at_most(&format!("product.{}", word(name, "-")), LONGEST), count.to_string());
    }
    branch(gpus).into_iter().for_each(|branch| put("driver.major", branch.to_owned()));
    put("mig", boards(gpus).any(|gpu| gpu.divided).to_string());
    put("nvlink", boards(gpus).any(|gpu| gpu.nvlink_island.is_some()).to_string());
    labels.iter().map(|(key, value)| format!("gpool.io/{key}={value}\n")).collect()
}

/// Its beginning, which ends in a letter or digit.
fn at_most(text: &str, length: usize) -> String {
    text[..text.len().min(length)].trim_end_matches(|letter: char| !letter.is_ascii_alphanumeric()).to_owned()
}
