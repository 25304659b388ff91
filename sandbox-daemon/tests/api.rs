//! Guards the API against changes that break its clients: nothing that was
//! released goes away, gets another number or another type.

use std::{fs, path::Path};

use prost::Message as _;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
    field_descriptor_proto::{Label, Type},
};

const PACKAGE: &str = "sandbox.v1";

/// Set, it writes the list anew.
const UPDATE: &str = "SANDBOX_UPDATE_API";

#[test]
fn the_api_only_grows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto/sandbox/v1/sandbox.api");
    let known = fs::read_to_string(&path).unwrap();
    let current = api();
    let gone: Vec<_> = known
        .lines()
        .filter(|line| !current.iter().any(|it| it == line))
        .collect();
    assert!(
        gone.is_empty(),
        "clients depend on what was changed or removed:\n{}",
        gone.join("\n")
    );
    let text = current.join("\n") + "\n";
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&path, text).unwrap();
        return;
    }
    assert!(
        known == text,
        "the API grew; run `{UPDATE}=1 cargo test -p sandbox-daemon --test api` and commit `{}`",
        path.display()
    );
}

/// A line for everything that a client may depend on.
fn api() -> Vec<String> {
    let set = FileDescriptorSet::decode(sandbox_daemon::proto::FILE_DESCRIPTOR_SET)
        .expect("the descriptors are those that were built in");
    let mut lines = Vec::new();
    for file in set.file.iter().filter(|file| file.package() == PACKAGE) {
        for service in &file.service {
            methods(service, &mut lines);
        }
        for message in &file.message_type {
            fields(PACKAGE, message, &mut lines);
        }
        for it in &file.enum_type {
            values(PACKAGE, it, &mut lines);
        }
    }
    lines
}

fn methods(service: &ServiceDescriptorProto, lines: &mut Vec<String>) {
    let stream = |is_stream| if is_stream { "stream " } else { "" };
    for method in &service.method {
        lines.push(format!(
            "rpc {PACKAGE}.{}.{} ({}{}) ({}{})",
            service.name(),
            method.name(),
            stream(method.client_streaming()),
            method.input_type(),
            stream(method.server_streaming()),
            method.output_type()
        ));
    }
}

fn fields(scope: &str, message: &DescriptorProto, lines: &mut Vec<String>) {
    let scope = format!("{scope}.{}", message.name());
    lines.push(format!("message {scope}"));
    for field in &message.field {
        let oneof = match field.oneof_index {
            Some(_) if field.proto3_optional() => " optional".to_owned(),
            Some(index) => {
                let index = usize::try_from(index).expect("an index is not negative");
                format!(" oneof {}", message.oneof_decl[index].name())
            }
            None if field.label() == Label::Repeated => " repeated".to_owned(),
            None => String::new(),
        };
        lines.push(format!(
            "field {scope}.{} = {} {}{oneof}",
            field.name(),
            field.number(),
            kind(field)
        ));
    }
    for nested in &message.nested_type {
        fields(&scope, nested, lines);
    }
    for nested in &message.enum_type {
        values(&scope, nested, lines);
    }
}

fn values(scope: &str, it: &EnumDescriptorProto, lines: &mut Vec<String>) {
    for value in &it.value {
        lines.push(format!(
            "value {scope}.{}.{} = {}",
            it.name(),
            value.name(),
            value.number()
        ));
    }
}

fn kind(field: &FieldDescriptorProto) -> String {
    match field.r#type() {
        Type::Message | Type::Enum => field.type_name().to_owned(),
        scalar => scalar
            .as_str_name()
            .trim_start_matches("TYPE_")
            .to_lowercase(),
    }
}
