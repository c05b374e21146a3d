//! The inputs that the fuzz targets begin with, in `fuzz/seeds`; they are run as tests, too.

use std::{fs, path::Path};

/// The environment variable that has the files written instead of compared.
const WRITE: &str = "SQUALL_WRITE_SEEDS";

/// Runs all inputs of a target. Inputs of `made` must be as the encoders write them today; the others are findings.
pub(crate) fn replay(target: &str, made: &[(&str, Vec<u8>)], run: impl Fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    if std::env::var_os(WRITE).is_some() {
        fs::create_dir_all(&directory).unwrap();
        for (name, bytes) in made {
            fs::write(directory.join(name), bytes).unwrap();
        }
    }
    for (name, bytes) in made {
        let path = directory.join(name);
        let stored = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; set {WRITE}=1", path.display()));
        assert!(stored == *bytes, "{} is not what the encoders write; set {WRITE}=1", path.display());
    }
    for entry in fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        // Names the input on the output of a test that panics.
        eprintln!("{}", path.display());
        run(&fs::read(&path).unwrap());
    }
}
