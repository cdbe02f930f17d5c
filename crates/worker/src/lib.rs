//! Processes that run other people's code: spawned, limited, supervised.
