pub(super) fn of_shape(_: &str) -> Option<String> {
    None
}
