//! Launch files of other frameworks: read as text, turned into a run file (`import`), and planned by those frameworks' own
//! rules (`run`). Nothing is run and nothing is fetched.

pub mod import;
pub mod run;
