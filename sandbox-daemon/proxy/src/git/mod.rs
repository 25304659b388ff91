//! The smart HTTP protocol of git, as far as it says what is read and written.
