//! The one tool a contributor needs: set up, run, test and measure.

fn main() {
    println!("xtask");
}
