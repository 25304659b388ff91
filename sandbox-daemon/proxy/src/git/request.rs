//! Which requests are git's (gitprotocol-http), and of which repository.
//!
//! What a lenient server might take for one although it is written otherwise is
//! refused, so that it is not forwarded as something else.

/// What a request is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Clones and fetches.
    UploadPack,
    /// Pushes.
    ReceivePack,
}

/// A part of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// `GET .../info/refs?service=...`
    References,
    /// `POST .../git-upload-pack` or `.../git-receive-pack`
    Exchange,
}

/// A request of git's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitRequest {
    /// What it is for.
    pub service: Service,
    /// Which part of that it is.
    pub step: Step,
    /// The path without the first slash and without `.git`.
    pub repository: String,
}

/// A request that a server might take for one of git's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// `info/refs` without a service, or with one that is neither to fetch nor to
    /// push; or `git-upload-archive`.
    #[error("a request of git's for neither fetching nor pushing")]
    Service,
    /// Another method than git uses.
    #[error("a request of git's with another method")]
    Method,
    /// Servers might read the path in several ways.
    #[error("a request of git's with an unclear path")]
    Path,
    /// Servers might read the query in several ways.
    #[error("a request of git's with an unclear query")]
    Query,
}

impl Service {
    /// As it is in requests.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::UploadPack => "git-upload-pack",
            Self::ReceivePack => "git-receive-pack",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::UploadPack, Self::ReceivePack]
            .into_iter()
            .find(|it| it.name() == name)
    }
}

/// Reads a request's path and query, as they were sent; none: it is not of git's.
///
/// # Errors
/// It may be, or it is one that is not supported.
pub fn read(
    method: &str,
    path: &str,
    query: Option<&str>,
) -> Result<Option<GitRequest>, RequestError> {
    let query = query.unwrap_or_default();
    match strictly(path) {
        Some((rest, end)) => {
            let (service, step) = match end {
                End::References => (service(query)?, Step::References),
                End::Exchange(_) if mentions_service(query) => return Err(RequestError::Query),
                End::Exchange(service) => (service, Step::Exchange),
                End::Archive => return Err(RequestError::Service),
            };
            let expected = match step {
                Step::References => "GET",
                Step::Exchange => "POST",
            };
            if method != expected {
                return Err(RequestError::Method);
            }
            let repository = repository(rest).ok_or(RequestError::Path)?;
            Ok(Some(GitRequest {
                service,
                step,
                repository,
            }))
        }
        None if resembles(path) => Err(RequestError::Path),
        None if parameters(query).any(|it| it.is_of_git()) => Err(RequestError::Query),
        None => Ok(None),
    }
}

/// How a path of git's ends.
enum End {
    References,
    Exchange(Service),
    Archive,
}

/// What comes before the end of a path that is written as git writes it.
fn strictly(path: &str) -> Option<(&str, End)> {
    let (rest, last) = path.rsplit_once('/')?;
    if let Some(service) = Service::named(last) {
        return Some((rest, End::Exchange(service)));
    }
    match last {
        ARCHIVE => Some((rest, End::Archive)),
        "refs" => Some((rest.strip_suffix("/info")?, End::References)),
        _ => None,
    }
}

const ARCHIVE: &str = "git-upload-archive";

/// The repository of a path; none: servers might find several in it.
fn repository(path: &str) -> Option<String> {
    let path = path.strip_prefix('/')?;
    if resembles(path) {
        return None;
    }
    let segments = path.split('/').map(segment).collect::<Option<Vec<_>>>()?;
    let name = segments.join("/");
    let short = name.strip_suffix(".git").unwrap_or(&name);
    // `.git` alone is a directory's whole name.
    let whole = short.is_empty() || short.ends_with('/');
    Some(if whole { name } else { short.into() })
}

/// A segment, decoded.
fn segment(raw: &str) -> Option<String> {
    // `;` begins parameters to some, which are cut off before dots are looked at.
    let odd = |it: char| it.is_control() || matches!(it, '/' | '\\' | ';' | '?' | '#');
    let well_written = |it: u8| matches!(it, b'!'..=b'~');
    if !raw.bytes().all(well_written) {
        return None;
    }
    let segment = String::from_utf8(decode(raw.as_bytes())).ok()?;
    // What could be decoded once more, and ends that some file systems cut off.
    let unclear = segment.contains(odd)
        || segment.contains('%')
        || segment.is_empty()
        || segment.ends_with(['.', ' ']);
    (!unclear).then_some(segment)
}

/// The service that `info/refs` is asked for.
fn service(query: &str) -> Result<Service, RequestError> {
    let mut services = parameters(query).filter(Parameter::is_service);
    let (Some(parameter), None) = (services.next(), services.next()) else {
        let unclear = mentions_service(query);
        return Err(if unclear {
            RequestError::Query
        } else {
            RequestError::Service
        });
    };
    match parameter.raw.strip_prefix("service=") {
        Some(name) if !parameter.ends_early => Service::named(name).ok_or({
            if name != ARCHIVE && parameter.is_of_git() {
                RequestError::Query
            } else {
                RequestError::Service
            }
        }),
        _ => Err(RequestError::Query),
    }
}

fn mentions_service(query: &str) -> bool {
    parameters(query).any(|it| it.is_service())
}

/// A parameter of a query, as some server might split it.
struct Parameter<'a> {
    raw: &'a str,
    /// Only to servers for which `;` is what `&` is.
    ends_early: bool,
}

impl Parameter<'_> {
    /// Whether it is `service` to some server: `service[]` is to PHP.
    fn is_service(&self) -> bool {
        let name = self.raw.split('=').next().unwrap_or_default();
        let name = pieces(name.as_bytes());
        name.is_none_or(|it| it.iter().any(|it| it == "service"))
    }

    fn is_of_git(&self) -> bool {
        let known = |it: &String| SERVICES.contains(&it.as_str());
        self.is_service() && pieces(self.raw.as_bytes()).is_none_or(|it| it.iter().any(known))
    }
}

fn parameters(query: &str) -> impl Iterator<Item = Parameter<'_>> {
    query.split('&').flat_map(|it| {
        let ends_early = it.contains(';');
        it.split(';').map(move |raw| Parameter { raw, ends_early })
    })
}

const SERVICES: [&str; 3] = ["git-upload-pack", "git-receive-pack", ARCHIVE];

/// Whether some server might find the end of a path of git's in this one.
fn resembles(path: &str) -> bool {
    let Some(pieces) = pieces(path.as_bytes()) else {
        return true;
    };
    let find = |name| pieces.iter().position(|it| it == name);
    let services = pieces.iter().any(|it| SERVICES.contains(&it.as_str()));
    // Nothing but names: there is one way to read it.
    let clear = pieces.join("/") == path.trim_start_matches('/').to_ascii_lowercase();
    let references = if clear {
        pieces.ends_with(&["info".into(), "refs".into()])
    } else {
        let last = pieces.iter().rposition(|it| it == "refs");
        find("info").is_some_and(|info| last.is_some_and(|refs| info < refs))
    };
    services || references
}

/// The words of a text, in small letters and decoded as often as it goes; none:
/// that is too often.
fn pieces(text: &[u8]) -> Option<Vec<String>> {
    const TIMES: usize = 8;
    let mut text = text.to_ascii_lowercase();
    let mut times = 0;
    while memchr::memchr(b'%', &text).is_some() {
        let decoded = decode(&text);
        if decoded == text {
            break;
        }
        times += 1;
        if times > TIMES {
            return None;
        }
        text = decoded.to_ascii_lowercase();
    }
    let of_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    let words = text.split(|byte| !of_word(byte)).map(|word| {
        let word = String::from_utf8_lossy(word);
        word.trim_matches(['.', '-', '_', '~']).to_owned()
    });
    Some(words.filter(|it| !it.is_empty()).collect())
}

/// Decodes `%2f` and the like once; what is none stays.
fn decode(text: &[u8]) -> Vec<u8> {
    let digit = |at: usize| {
        let byte = *text.get(at)?;
        char::from(byte)
            .to_digit(16)
            .and_then(|it| u8::try_from(it).ok())
    };
    let mut decoded = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        if let (b'%', Some(high), Some(low)) = (byte, digit(at + 1), digit(at + 2)) {
            decoded.push(high << 4 | low);
            at += 3;
        } else {
            decoded.push(*byte);
            at += 1;
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(service: Service, step: Step, repository: &str) -> GitRequest {
        GitRequest {
            service,
            step,
            repository: repository.into(),
        }
    }

    fn url(method: &str, url: &str) -> Result<Option<GitRequest>, RequestError> {
        match url.split_once('?') {
            Some((path, query)) => read(method, path, Some(query)),
            None => read(method, url, None),
        }
    }

    #[test]
    fn the_requests_of_git_are_recognised() {
        use Service::{ReceivePack, UploadPack};
        use Step::{Exchange, References};
        let fetch = "/o/r.git/info/refs?service=git-upload-pack";
        let push = "/o/r/info/refs?service=git-receive-pack";
        assert_eq!(
            url("GET", fetch),
            Ok(Some(git(UploadPack, References, "o/r")))
        );
        assert_eq!(
            url("GET", push),
            Ok(Some(git(ReceivePack, References, "o/r")))
        );
        let fetch = "/o/r.git/git-upload-pack";
        let push = "/a/b/c/r.x.git.git/git-receive-pack";
        assert_eq!(
            url("POST", fetch),
            Ok(Some(git(UploadPack, Exchange, "o/r")))
        );
        assert_eq!(
            url("POST", push),
            Ok(Some(git(ReceivePack, Exchange, "a/b/c/r.x.git")))
        );
        let with = "/r/info/refs?a=b&service=git-upload-pack&token=x%20y";
        assert_eq!(url("GET", with), Ok(Some(git(UploadPack, References, "r"))));
        let encoded = "/~me/b%C3%BCcher%20a/.git/git-upload-pack";
        assert_eq!(
            url("POST", encoded),
            Ok(Some(git(UploadPack, Exchange, "~me/b\u{fc}cher a/.git")))
        );
    }

    #[test]
    fn other_requests_are_not_of_git() {
        for path in [
            "/",
            "*",
            "",
            "/o/r",
            "/o/r.git",
            "/o/r/info",
            "/o/r/refs",
            "/api/v3/repos/o/r/git/refs/heads",
            "/o/r/blob/main/docs/git-receive-pack.txt",
            "/o/git-upload-pack-proxy?a=service",
            "/o/info/refs-of-it",
            "/o/r/info/lfs/objects/batch",
            "/search?q=git-receive-pack",
            "/x?service=mail",
            "/o/r/tree/info/refs/heads",
        ] {
            assert_eq!(url("GET", path), Ok(None), "{path}");
            assert_eq!(url("POST", path), Ok(None), "{path}");
        }
    }

    #[test]
    fn the_dumb_protocol_and_other_services_are_refused() {
        for path in [
            "/o/r/info/refs",
            "/o/r/info/refs?",
            "/o/r/info/refs?a=b",
            "/o/r/info/refs?service=",
            "/o/r/info/refs?service=git-upload",
            "/o/r/info/refs?service=upload-pack",
            "/o/r/info/refs?service=git-upload-archive",
            "/o/r/git-upload-archive",
        ] {
            assert_eq!(url("GET", path), Err(RequestError::Service), "{path}");
        }
    }

    #[test]
    fn a_service_that_is_not_written_as_git_writes_it_is_refused() {
        for query in [
            "service=git-upload-pack&service=git-receive-pack",
            "service=git-upload-pack&service=git-upload-pack",
            "service=git-upload-pack&service",
            "service=git-upload-pack;service=git-receive-pack",
            "a=b;service=git-receive-pack",
            "service=git-upload-pack;a=b",
            "service=git%2dreceive-pack",
            "%73ervice=git-receive-pack",
            "%2573ervice=git-receive-pack",
            "service[]=git-receive-pack",
            "service%00=git-receive-pack",
            "+service=git-receive-pack",
            "Service=git-receive-pack",
            "service=git-receive-pack%00",
            "service=GIT-RECEIVE-PACK",
            "service= git-receive-pack",
            "a=b&service=git-upload-pack&SERVICE=git-receive-pack",
        ] {
            let refused = read("GET", "/o/r/info/refs", Some(query));
            assert_eq!(refused, Err(RequestError::Query), "{query}");
        }
        // Elsewhere than where it belongs.
        for url in [
            "/x?service=git-receive-pack",
            "/x?a;Service[]=git%2dupload-pack",
        ] {
            let (path, query) = url.split_once('?').unwrap();
            assert_eq!(read("GET", path, Some(query)), Err(RequestError::Query));
        }
        let both = read(
            "POST",
            "/r/git-upload-pack",
            Some("service=git-receive-pack"),
        );
        assert_eq!(both, Err(RequestError::Query));
    }

    #[test]
    fn a_path_that_a_lenient_server_might_take_for_one_of_git_is_refused() {
        for path in [
            "/o/r/git%2dreceive-pack",
            "/o/r/git%2Dreceive%2Dpack",
            "/o/r/git%252dreceive-pack",
            "/o/r%2fgit-receive-pack",
            "/o/r%5cgit-receive-pack",
            "/o/r\\git-receive-pack",
            "/o/r/%67it-receive-pack",
            "/o/r/git-receive-pack/",
            "/o/r/git-receive-pack//",
            "/o/r/git-receive-pack/.",
            "/o/r/git-receive-pack/x",
            "/o/r/git-receive-pack/x/..",
            "/o/r/git-receive-pack;a=b",
            "/o/r/git-receive-pack%3fa",
            "/o/r/git-receive-pack%00",
            "/o/r/git-receive-pack%20",
            "/o/r/git-receive-pack.",
            "/o/r/Git-Receive-Pack",
            "/o/r//git-receive-pack",
            "//o/r/git-receive-pack",
            "/o//r/git-receive-pack",
            "/o/./r/git-receive-pack",
            "/o/../r/git-receive-pack",
            "/o/%2e%2e/r/git-receive-pack",
            "/o/%2E./r/git-receive-pack",
            "/o/%252e%252e/r/git-receive-pack",
            "/o/..;/r/git-receive-pack",
            "/o/r;a=b/git-receive-pack",
            "/o/r%3ba/git-receive-pack",
            "/o%2fr/git-receive-pack",
            "/o%5cr/git-receive-pack",
            "/o/r%0a/git-receive-pack",
            "/o/r%00/git-receive-pack",
            "/o/r%23/git-receive-pack",
            "/o/r./git-receive-pack",
            "/o/r%20/git-receive-pack",
            "/o/r%/git-receive-pack",
            "/o/r%ff/git-receive-pack",
            "/o/r\u{fc}/git-receive-pack",
            "/git-receive-pack",
            "git-receive-pack",
            "/o/git-receive-pack/git-receive-pack",
            "/o/r/info/refs/git-receive-pack",
            "/%2525252525252525252525252525252561",
        ] {
            assert_eq!(url("POST", path), Err(RequestError::Path), "{path}");
        }
        for path in [
            "/o/r/info/refs/",
            "/o/r/info//refs",
            "/o/r/info/./refs",
            "/o/r/info/x/../refs",
            "/o/r/info%2frefs",
            "/o/r/info/%72efs",
            "/o/r/info;a/refs",
            "/o/r/info/refs;a",
            "/o/r/INFO/refs",
            "/o/r/info/refs%00",
            "/o/r/info/refs/../refs/x/..",
            "//info/refs",
            "/info/refs",
            "/o/../r/info/refs",
        ] {
            let query = Some("service=git-upload-pack");
            assert_eq!(read("GET", path, query), Err(RequestError::Path), "{path}");
        }
    }

    #[test]
    fn another_method_than_git_uses_is_refused() {
        for method in ["POST", "HEAD", "get", "PUT", "OPTIONS"] {
            let refused = url(method, "/r/info/refs?service=git-upload-pack");
            assert_eq!(refused, Err(RequestError::Method), "{method}");
        }
        for method in ["GET", "HEAD", "PUT", "post"] {
            let refused = url(method, "/r/git-receive-pack");
            assert_eq!(refused, Err(RequestError::Method), "{method}");
        }
    }

    /// Every byte of a request of git's, written in each other way that there is:
    /// it is refused, or is another request, but is never not of git's.
    #[test]
    fn no_encoding_of_a_request_of_git_is_forwarded_as_something_else() {
        let plain = "/o/r.git/git-receive-pack";
        for at in 10..plain.len() {
            let byte = plain.as_bytes()[at];
            let (before, after) = (&plain[..at], &plain[at + 1..]);
            for written in [
                format!("%{byte:02x}"),
                format!("%{byte:02X}"),
                format!("%25{byte:02x}"),
                format!("%{:02x}", byte.to_ascii_uppercase()),
            ] {
                let path = format!("{before}{written}{after}");
                assert_eq!(url("POST", &path), Err(RequestError::Path), "{path}");
            }
        }
        for path in [plain, "/o/r/info/refs"] {
            for (at, _) in path.match_indices('/').skip(1).chain([(path.len(), "")]) {
                for more in MORE {
                    let path = format!("{}{more}{}", &path[..at], &path[at..]);
                    assert!(url("POST", &path).is_err(), "{path}");
                }
            }
            for (at, _) in path.match_indices('/') {
                for more in MORE.iter().filter(|it| **it != ";a=b") {
                    let path = format!("{}{more}{}", &path[..=at], &path[at + 1..]);
                    assert!(url("POST", &path).is_err(), "{path}");
                }
            }
        }
    }

    const MORE: [&str; 10] = [
        "/", "//", "/./", "/x/../", ";", ";a=b", "\\", "%00", "%2f", "%09",
    ];
}
