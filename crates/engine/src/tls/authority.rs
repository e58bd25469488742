//! Certificates for tests.

use std::fs;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use vocab::options::NetOptions;

/// An issuer of certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// Writes what a node of that name needs to a folder.
    pub(crate) fn equip(&self, folder: &Path, name: &str) -> NetOptions {
        self.equip_until(folder, name, 2100)
    }

    /// The same with a certificate that ends with the beginning of that year.
    pub(crate) fn equip_until(&self, folder: &Path, name: &str, year: i32) -> NetOptions {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        let file = |kind: &str, content: &str| {
            let path = folder.join(format!("{name}-{kind}.pem"));
            fs::write(&path, content).unwrap();
            path.display().to_string()
        };
        NetOptions {
            tls: true,
            tls_keyring: file("keyring", &self.pem),
            tls_certificate: file("certificate", &certificate),
            tls_privkey: file("key", &key.serialize_pem()),
            ..NetOptions::default()
        }
    }
}
