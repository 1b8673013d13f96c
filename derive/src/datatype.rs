//! `#[derive(Datatype)]`: offsets and types of the fields, nothing more.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Index, Path, Result};

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let fields = match &input.data {
        Data::Struct(data) => &data.fields,
        Data::Enum(data) => {
            return Err(Error::new(
                data.enum_token.span,
                "an enum is no datatype: not every bit pattern is a valid value \
                 (hint: send its integer representation)",
            ));
        }
        Data::Union(data) => {
            return Err(Error::new(
                data.union_token.span,
                "a union is no datatype: which field is valid is unknown \
                 (hint: send one of its fields)",
            ));
        }
    };
    if !has_defined_layout(input)? {
        return Err(Error::new(
            input.ident.span(),
            "a datatype needs a defined layout (hint: add #[repr(C)] to the struct)",
        ));
    }
    if !input.generics.params.is_empty() {
        return Err(Error::new(
            input.generics.span(),
            "a generic struct cannot derive Datatype (hint: make one struct per type)",
        ));
    }
    let room = room(input)?;
    let name = &input.ident;

    let types: Vec<_> = fields.iter().map(|field| &field.ty).collect();
    let entries = fields.iter().enumerate().map(|(i, field)| {
        let ty = &field.ty;
        let member = match &field.ident {
            Some(ident) => quote!(#ident),
            None => {
                let index = Index::from(i);
                quote!(#index)
            }
        };
        quote_spanned! {ty.span()=>
            (
                ::core::mem::offset_of!(#name, #member),
                <#ty as #room::Datatype>::datatype(),
            )
        }
    });
    let dense = types.iter().map(|ty| {
        quote_spanned! {ty.span()=> #room::derive_support::field::<#ty>() }
    });
    Ok(quote! {
        // SAFETY: the struct has a defined layout, every field is a datatype
        // (checked below), and offsets and size are the compiler's.
        #[automatically_derived]
        #[allow(unsafe_code)]
        unsafe impl #room::Datatype for #name {
            const DENSE: bool = #room::derive_support::dense(
                ::core::mem::size_of::<#name>(),
                &[#(#dense),*],
            );

            fn datatype() -> #room::Type {
                #room::derive_support::structure(
                    ::core::mem::size_of::<#name>(),
                    &[#(#entries),*],
                )
            }

            fn layout() -> #room::Layout {
                static LAYOUT: ::std::sync::OnceLock<#room::Layout> = ::std::sync::OnceLock::new();
                LAYOUT
                    .get_or_init(|| {
                        #room::derive_support::commit(&<#name as #room::Datatype>::datatype())
                    })
                    .clone()
            }
        }
    })
}

/// Whether `#[repr(C)]` or `#[repr(transparent)]` fixes the layout.
fn has_defined_layout(input: &DeriveInput) -> Result<bool> {
    let mut defined = false;
    for attribute in &input.attrs {
        if !attribute.path().is_ident("repr") {
            continue;
        }
        attribute.parse_nested_meta(|meta| {
            defined |= meta.path.is_ident("C") || meta.path.is_ident("transparent");
            if meta.input.peek(syn::token::Paren) {
                let content;
                syn::parenthesized!(content in meta.input);
                content.parse::<TokenStream>()?;
            }
            Ok(())
        })?;
    }
    Ok(defined)
}

/// The path of the crate with the trait.
fn room(input: &DeriveInput) -> Result<TokenStream> {
    let mut room = quote!(::osier::datatype);
    for attribute in &input.attrs {
        if !attribute.path().is_ident("datatype") {
            continue;
        }
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("crate") {
                return Err(meta.error("unknown option (hint: crate = path)"));
            }
            let path: Path = meta.value()?.call(Path::parse_mod_style)?;
            room = quote!(#path);
            Ok(())
        })?;
    }
    Ok(room)
}
