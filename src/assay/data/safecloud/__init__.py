"""x"""

from assay.data.safecloud.encrypted import Encrypted as Encrypted
from assay.data.safecloud.vault import Vault as Vault
